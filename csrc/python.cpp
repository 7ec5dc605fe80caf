// The module seq2seq_fast._C. Importing it registers the operators; its one function calls rnn_layer from Python
// without torch.ops, whose generic parsing costs a small layer 4 us of 14 (AMD EPYC, Zen 4).
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "schemas.h"

namespace seq2seq_fast {
namespace {

// No subclass of Tensor, whose __torch_function__ or __torch_dispatch__ torch.ops would call.
bool plain(PyObject* argument) { return Py_IsNone(argument) || THPVariable_CheckExact(argument); }

std::optional<at::Tensor> tensor_or_none(PyObject* argument) {
  return Py_IsNone(argument) ? std::nullopt : std::optional<at::Tensor>(THPVariable_Unpack(argument));
}

// rnn_layer(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional), positional, `weights` a list: a tuple
// of tensors, or None where only torch.ops can serve the arguments.
PyObject* rnn_layer(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 8 || !PyList_CheckExact(arguments[3]) || !PyUnicode_Check(arguments[6]) || !PyBool_Check(arguments[7]) ||
      !THPVariable_CheckExact(arguments[0]) || at::impl::torch_function_mode_enabled() ||
      torch::jit::tracer::isTracing())
    Py_RETURN_NONE;
  for (const int k : {1, 2, 4, 5})
    if (!plain(arguments[k])) Py_RETURN_NONE;
  c10::SmallVector<at::Tensor, 8> weights;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(arguments[3]); ++k) {
    PyObject* weight = PyList_GET_ITEM(arguments[3], k);
    if (!THPVariable_CheckExact(weight)) Py_RETURN_NONE;
    weights.push_back(THPVariable_Unpack(weight));
  }
  Py_ssize_t length;
  const char* cell = PyUnicode_AsUTF8AndSize(arguments[6], &length);
  if (!cell) return nullptr;
  static const auto op = find<LayerSchema>("seq2seq_fast::rnn_layer");
  const at::Tensor input = THPVariable_Unpack(arguments[0]);
  const auto h_0 = tensor_or_none(arguments[1]), c_0 = tensor_or_none(arguments[2]);
  const auto lengths = tensor_or_none(arguments[4]), batch_sizes = tensor_or_none(arguments[5]);
  std::vector<at::Tensor> outputs;
  {
    pybind11::gil_scoped_release no_gil;
    outputs = op.call(input, h_0, c_0, weights, lengths, batch_sizes, std::string_view(cell, length),
                      arguments[7] == Py_True);
  }
  PyObject* results = PyTuple_New(Py_ssize_t(outputs.size()));
  if (!results) return nullptr;
  for (size_t k = 0; k < outputs.size(); ++k) PyTuple_SET_ITEM(results, k, THPVariable_Wrap(std::move(outputs[k])));
  return results;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"rnn_layer", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(rnn_layer)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace seq2seq_fast

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&seq2seq_fast::module); }
