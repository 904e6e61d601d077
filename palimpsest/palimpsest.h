#pragma once

/// The one header that most users include. Every header below can be included by itself, in less time
/// (docs/library.md has a table). `namespace pal = palimpsest;` shortens the names.
///
/// models/   networks by name
///   models::make(name, {...})      ResNet, ResNeXt, WideResNet, EfficientNet, MobileNetV3, DeepLabV3, DenseNet,
///                                  GoogLeNet, Inception, AlexNet, VGG. One word, ModelOptions::strategy, says how
///                                  the whole network spends memory: the same weights, the same gradients
/// nn/       modules; each has clone(), and the state-dict keys of libtorch's module
///   nn::BatchNormAct (nn::Norm)    batch normalization + activation by strategy; writes over its input by default
///   nn::InPlaceABN                 the same with strategy inplace_2: saves only its output for backward
///   nn::BatchNormActConv2d         both and a convolution, as one node of the graph
///   nn::Conv2d, nn::Linear         libtorch's layers that save no 16-bit copy of their weight under autocast
///   nn::DenseBlock, nn::DenseTransition   densely connected blocks by any of five forms
///   nn::max_pool2d                 max pooling by strategy
///   nn::spatial_mean               the mean over pixels, in front of a classifier
///   nn::feature_dropout_into       dropout of whole channels, and the convolution behind it
///   nn::fold_batch_norm            moves a normalization into a convolution, for inference
///   nn::Cloneable                  clone() for modules of your own
///   nn::Model                      the base class of the networks: forward, classifier
///   nn::state_dict                 every tensor of a module by name, in the order of Python's state_dict()
/// ops/      the same as functions on tensors
///   ops::abn, ops::abn_            batch normalization + activation; abn_ writes over its input
///   ops::abn_conv, ops::abn_conv_, ops::activate_conv   with the convolution behind it
///   ops::convolution, ops::linear  save no 16-bit copy of the weight under autocast
///   ops::squeeze_excite_conv       squeeze and excitation and the convolution behind it; saves one tensor
///   ops::gated_conv                the same with gates that are given, such as the factors of a dropout
///   ops::parallel_convolutions     convolutions of one input, with one gradient of its size
///   ops::spatial_mean              the mean over pixels, whose gradient is a view
///   ops::dense_block, ops::concat_abn_conv, ops::FeatureSlots   densely connected blocks
///   ops::max_pool2d                saves one byte per output
///   ops::upsampled_cross_entropy, ops::upsampled_argmax   a segmentation head without full-size logits
///   ops::abn_fallback_stats        how often a layer had to save more than its output
/// memory/   measuring and saving memory
///   memory::install_counting_allocator   counts bytes; call it before any tensor exists
///   memory::Meter, memory::Timeline      kept and peak bytes of a step; live bytes over time
///   memory::recompute(fn, x)       activation (gradient) checkpointing
///   memory::BufferSnapshot         saves and restores running statistics
/// amp/      mixed precision
///   amp::AutocastGuard, amp::PrecisionGuard, amp::GradScaler   torch.autocast and torch.amp.GradScaler
///   amp::drop_weight_copies        libtorch's own layers keep no 16-bit copy of their weights until backward
///   amp::accumulate_gradients_in   accumulates gradients in 16 bits
///   amp::MasterWeights             16-bit parameters with f32 masters
///   amp::ExponentHistogram         shows which gradients f16 loses
/// distributed/   several processes
///   distributed::launch_from_environment, distributed::Group   the ranks that torchrun or srun started
///   distributed::DataParallel      averages gradients over the ranks while backward runs
/// base/
///   Error                          the error of models, nn, memory::recompute, distributed and amp. Operators throw
///                                  c10::Error; Meter and Timeline throw std::logic_error
///
/// Training loops, data and files have headers of their own: palimpsest/{train,data,io}/.
#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/amp/drop_weight_copies.h"
#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/amp/gradient_dtype.h"
#include "palimpsest/amp/master_weights.h"
#include "palimpsest/amp/precision.h"
#include "palimpsest/base/error.h"
#include "palimpsest/distributed/data_parallel.h"
#include "palimpsest/distributed/launch.h"
#include "palimpsest/distributed/process_group.h"
#include "palimpsest/memory/buffer_snapshot.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/batch_norm_act_conv2d.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/dense_transition.h"
#include "palimpsest/nn/feature_dropout.h"
#include "palimpsest/nn/fold.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/nn/linear.h"
#include "palimpsest/nn/max_pool.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/spatial_mean.h"
#include "palimpsest/nn/squeeze_excitation.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/concat_abn_conv.h"
#include "palimpsest/ops/convolution.h"
#include "palimpsest/ops/dense_block.h"
#include "palimpsest/ops/feature_slots.h"
#include "palimpsest/ops/linear.h"
#include "palimpsest/ops/max_pool.h"
#include "palimpsest/ops/parallel_convolutions.h"
#include "palimpsest/ops/spatial_mean.h"
#include "palimpsest/ops/squeeze_excite_conv.h"
#include "palimpsest/ops/upsampled_loss.h"
