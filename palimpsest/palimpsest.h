#pragma once

/// The one header that most users include: what a C++ training program on libtorch gets.
///
///   nn::InPlaceABN              batch normalization + activation that keeps its output only; the keys of
///                               BatchNorm2d
///   models::make(name, options) ResNet, ResNeXt, DeepLabV3, DenseNet, Inception, AlexNet, VGG by name;
///                               ModelOptions::strategy says how the whole network spends memory: the same
///                               weights, the same gradients
///   memory::install_counting_allocator(), memory::Meter, memory::Timeline
///                               kept and peak bytes of a step; call the first before any tensor
///   memory::recompute(fn, x)    runs a segment that keeps its input only, and again in backward: activation
///                               checkpointing
///   amp::AutocastGuard, amp::GradScaler
///                               mixed precision: what torch.autocast and torch.amp.GradScaler are in Python
///   amp::drop_weight_copies(loss)
///                               libtorch's own layers keep no 16-bit copy of their weights until backward
///                               (ours never do); amp::accumulate_gradients_in, amp::MasterWeights,
///                               memory::BufferSnapshot
///   ops::abn, ops::abn_         the same layer as a function on tensors; ops::abn_conv: with the convolution
///                               behind it; ops::max_pool2d: one byte an output
///   nn::DenseBlock              a densely connected block by any of five forms; ops::dense_block: without a
///                               concatenation, as a function on tensors
///   nn::state_dict              every tensor of a module by name, in the order of Python's state_dict()
///
/// Training loops, data, files and the command line have headers of their own below
/// palimpsest/{train,data,io,cli}.
#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/amp/drop_weight_copies.h"
#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/amp/gradient_dtype.h"
#include "palimpsest/amp/master_weights.h"
#include "palimpsest/amp/precision.h"
#include "palimpsest/base/error.h"
#include "palimpsest/memory/buffer_snapshot.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/convolve.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/norm.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/convolution.h"
#include "palimpsest/ops/dense_block.h"
#include "palimpsest/ops/linear.h"
#include "palimpsest/ops/max_pool.h"
