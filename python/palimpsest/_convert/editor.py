"""Changes of a graph that every part of the rewriting makes."""
import operator

from palimpsest._convert.aliases import Aliases


class Editor:
    """A graph, the modules that its nodes call, and new nodes for it."""

    def __init__(self, graph, modules, options, aliases):
        self.graph, self.modules, self.options, self.aliases = graph, modules, options, aliases

    def _call(self, before, function, *arguments, **keywords):
        with self.graph.inserting_before(before):
            return self.graph.call_function(function, arguments, keywords)

    def _module(self, before, name):
        with self.graph.inserting_before(before):
            return self.graph.get_attr(name)

    def _with_source(self, before, function, *arguments, **keywords):
        """The first result of a function that returns a value and its source."""
        pair = self._call(before, function, *arguments, **keywords)
        value = self._call(before, operator.getitem, pair, 0)
        value.meta["source"] = self._call(before, operator.getitem, pair, 1)
        return value

    def _replace(self, old, new):
        """Lets new answer for old: its readers read new, and so does who asks for its memory."""
        Aliases.replaces(new, old)
        old.replace_all_uses_with(new)
        self._erase(old)

    def _erase(self, node):
        self.graph.erase_node(node)
