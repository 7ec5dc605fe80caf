// What the operators' autograd rules share: when the reference has to serve, and its gradients.
#pragma once

#include <ATen/FuncTorchTLS.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "schemas.h"

namespace seq2seq_fast {

using at::Tensor;
using torch::autograd::variable_list;

// Whether a transform of torch.func is at work, or forward mode.
inline bool transforming() {
  const auto& functorch = at::functorch::functorchTLSAccessor();
  if (functorch) {
    try {
      functorch->checkSupportsCppAutogradFunction();
    } catch (const c10::Error&) {
      return true;
    }
  }
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

// Under vmap of torch.func, or of is_grads_batched.
inline bool any_batched(const variable_list& tensors) {
  constexpr c10::DispatchKeySet vmap_keys{c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched};
  const auto batched = [&](const Tensor& d) { return d.defined() && d.key_set().has_any(vmap_keys); };
  return std::any_of(tensors.begin(), tensors.end(), batched);
}

// The gradients of the reference's outputs for the arguments that are wanted: as functions that can be differentiated
// again, or batched. The others are undefined.
//
// The reference is evaluated on the arguments under other names, so that its gradient for one has no part that went through
// another: of a layer's second call, h_0 was made with its weights.
template <class Reference>
variable_list reference_gradients(const Reference& reference, const variable_list& d_outputs,
                                  const variable_list& arguments, const std::vector<bool>& wanted, bool create_graph) {
  at::AutoGradMode enable(true);
  variable_list others;
  for (const Tensor& x : arguments) others.push_back(x.defined() ? at::alias(x) : x);
  const variable_list outputs = reference(others);
  variable_list used, d_used, inputs;
  for (size_t k = 0; k < outputs.size(); ++k) {
    // of an output that no wanted argument reaches there is nothing to say: a cell state of one step knows no projection
    if (!d_outputs[k].defined() || !outputs[k].requires_grad()) continue;
    used.push_back(outputs[k]);
    d_used.push_back(d_outputs[k]);
  }
  std::vector<size_t> where;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!wanted[k]) continue;
    inputs.push_back(others[k]);
    where.push_back(k);
  }
  variable_list gradients(arguments.size());
  if (used.empty()) return gradients;
  const variable_list found =
      torch::autograd::grad(used, inputs, d_used, /*retain_graph=*/true, create_graph, /*allow_unused=*/true);
  for (size_t k = 0; k < found.size(); ++k) gradients[where[k]] = found[k];
  return gradients;
}

}  // namespace seq2seq_fast
