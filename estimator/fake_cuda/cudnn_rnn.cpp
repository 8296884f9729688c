// cuDNN: recurrent networks. Weights lie as cuDNN lays them; what a run needs besides is invented.

#include "cudnn.h"
#include "element.h"

using namespace gpumem;

namespace {

struct SequenceData {
  int type = 0, longest = 0, batch = 0, width = 0;
};

struct Recurrent {
  int mode = 0, bias_mode = 0, directions = 1, type = 0;
  int input = 0, hidden = 0, projected = 0, layers = 0;

  enum Mode { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };
  enum BiasMode { kNoBias = 0, kInputBias = 1, kBothBiases = 2, kHiddenBias = 3 };

  int gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  // Numbers that the backward pass needs of each unit at each step.
  int kept() const { return mode == kLstm ? 5 : mode == kGru ? 6 : 3; }
  bool projects() const { return projected > 0 && projected != hidden; }
  int output() const { return projects() ? projected : hidden; }
  int pseudo_layers() const { return layers * directions; }
  int input_of(int pseudo_layer) const { return pseudo_layer / directions == 0 ? input : output() * directions; }

  // Matrix `id` of a layer: the gates' input matrices, then the gates' recurrent ones, then the projection.
  int matrices() const { return 2 * gates() + projects(); }
  int rows(int id) const { return id == 2 * gates() ? projected : hidden; }
  int columns(int pseudo_layer, int id) const {
    return id < gates() ? input_of(pseudo_layer) : id < 2 * gates() ? output() : hidden;
  }
  bool has_bias(int id) const {
    if (id >= 2 * gates()) return false;
    return bias_mode == kBothBiases || bias_mode == (id < gates() ? kInputBias : kHiddenBias);
  }

  uint64_t matrix_elements(int pseudo_layer, int id) const {
    return static_cast<uint64_t>(rows(id)) * static_cast<uint64_t>(columns(pseudo_layer, id));
  }
  // Where a matrix begins: all matrices of all layers come first, in order.
  uint64_t matrix_offset(int pseudo_layer, int id) const {
    uint64_t offset = 0;
    for (int layer = 0; layer <= pseudo_layer; ++layer)
      for (int i = 0; i < (layer == pseudo_layer ? id : matrices()); ++i) offset += matrix_elements(layer, i);
    return offset;
  }
  uint64_t biases_of_layer() const {
    uint64_t count = 0;
    for (int id = 0; id < 2 * gates(); ++id) count += has_bias(id);
    return count * static_cast<uint64_t>(hidden);
  }
  uint64_t bias_offset(int pseudo_layer, int id) const {
    uint64_t offset = matrix_offset(pseudo_layers(), 0) + biases_of_layer() * static_cast<uint64_t>(pseudo_layer);
    for (int i = 0; i < id; ++i) offset += has_bias(i) ? static_cast<uint64_t>(hidden) : 0;
    return offset;
  }
  uint64_t weight_elements() const { return bias_offset(pseudo_layers(), 0); }
};

}  // namespace

API int cudnnCreateRNNDescriptor(Recurrent** out) { return make(out); }
API int cudnnDestroyRNNDescriptor(Recurrent* network) { return drop(network); }
API int cudnnCreateRNNDataDescriptor(SequenceData** out) { return make(out); }
API int cudnnDestroyRNNDataDescriptor(SequenceData* data) { return drop(data); }
API int cudnnSetRNNDescriptor_v8(Recurrent* network, int, int mode, int bias_mode, int direction_mode, int, int type,
                                 int, int, int input, int hidden, int projected, int layers, void*, uint32_t) {
  *network = {mode, bias_mode, direction_mode + 1, type, input, hidden, projected, layers};
  return kDnnOk;
}
API int cudnnSetRNNDataDescriptor(SequenceData* data, int type, int, int longest, int batch, int width, const int*,
                                  void*) {
  *data = {type, longest, batch, width};
  return kDnnOk;
}
API int cudnnGetRNNWeightSpaceSize(DnnHandle*, const Recurrent* network, size_t* bytes) {
  *bytes = network->weight_elements() * element_bytes(network->type);
  return kDnnOk;
}
API int cudnnGetRNNWeightParams(DnnHandle*, const Recurrent* network, int pseudo_layer, size_t, const char* weights,
                                int id, Tensor* matrix, const void** matrix_address, Tensor* bias,
                                const void** bias_address) {
  const uint64_t element = element_bytes(network->type);
  if (pseudo_layer < 0 || pseudo_layer >= network->pseudo_layers() || id < 0) return kDnnBadParameter;
  const bool exists = id < network->matrices();
  if (matrix_address) *matrix_address = exists ? weights + network->matrix_offset(pseudo_layer, id) * element : nullptr;
  if (matrix && exists) matrix->set(network->type, {1, network->rows(id), network->columns(pseudo_layer, id)});
  const bool has_bias = exists && network->has_bias(id);
  if (bias_address) *bias_address = has_bias ? weights + network->bias_offset(pseudo_layer, id) * element : nullptr;
  if (bias && has_bias) bias->set(network->type, {1, network->hidden, 1});
  return kDnnOk;
}
// Invented, but for what training keeps of LSTM and GRU: a published pair of sizes (github.com/pytorch/pytorch/issues/2895:
// 4 layers of 320 units, 736,000,000 and 864,000,000 bytes) is 5 and 6 numbers per step, sequence and unit of each layer, and
// one more for what a layer gives to the next. The workspace is taken to hold the gates of one layer's directions.
API int cudnnGetRNNTempSpaceSizes(DnnHandle*, const Recurrent* network, int training, const SequenceData* data,
                                  size_t* workspace, size_t* reserve) {
  note_invented("cudnn recurrent workspace");
  const uint64_t units = static_cast<uint64_t>(data->longest) * static_cast<uint64_t>(data->batch) *
                         static_cast<uint64_t>(network->hidden) * element_bytes(network->type);
  if (workspace) *workspace = units * static_cast<uint64_t>(network->gates() * network->directions);
  if (reserve)
    *reserve = training ? units * static_cast<uint64_t>(network->kept() * network->pseudo_layers() +
                                                       (network->layers - 1) * network->directions)
                        : 0;
  return kDnnOk;
}
API int cudnnDropoutGetStatesSize(DnnHandle*, size_t* bytes) {
  // One generator per resident thread.
  constexpr uint64_t state_bytes = 48;
  note_invented("cudnn dropout states");
  const Device& device = devices_of_process().devices[current_device()];
  *bytes = static_cast<uint64_t>(device.spec.sm_count) * 2048 * state_bytes;
  return kDnnOk;
}
NO_OP(cudnnBuildRNNDynamic)
NO_OP(cudnnRNNForward)
NO_OP(cudnnRNNBackwardData_v8)
NO_OP(cudnnRNNBackwardWeights_v8)
