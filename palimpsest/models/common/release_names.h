#pragma once

#include "palimpsest/nn/state_dict.h"

namespace palimpsest::models {

/// Gives the keys of the In-Place ABN paper's release our names:
/// | network             | there                                      | here                                       |
/// | ------------------- | ------------------------------------------ | ------------------------------------------ |
/// | ResNeXt, WideResNet | classifier.fc                              | fc                                         |
/// | DenseNet            | mod1.conv1, .bn1, .conv2, .bn2, .conv3     | features.conv0, .norm0, .conv1, .norm1, ...|
/// |                     | mod2.convs1.0.bn, .conv (1x1)              | features.denseblock1.denselayer1.norm1, .conv1 |
/// |                     | mod2.convs3.0.bn, .conv (3x3)              | features.denseblock1.denselayer1.norm2, .conv2 |
/// |                     | tra2.bn, .conv                             | features.transition1.norm, .conv           |
/// |                     | bn_out, classifier.fc                      | features.norm5, classifier                 |
/// Other keys stay: no network of ours has keys with the names there. Expects keys without the prefix "module.".
void rename_release_keys(nn::StateDict& tensors);

}  // namespace palimpsest::models
