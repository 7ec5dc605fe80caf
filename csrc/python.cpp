// The module seq2seq_fast._C. Importing it registers the operators; its functions call the ones that run step by step
// without torch.ops, whose generic parsing costs a small layer 4 us of 14 (AMD EPYC, Zen 4).
//
// Each takes what the operator takes, positional, lists as lists, and gives a tuple of tensors; or None, where only
// torch.ops can serve the arguments. `decoder` is made of operators and is none itself: it takes decoder.h's Decoding, and
// gives None where only the Python loop can serve.
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "decoder.h"
#include "schemas.h"

namespace seq2seq_fast {
namespace {

using Tensors = c10::SmallVector<Tensor, 8>;

// Arguments read one after the other. `plain` ends where one is not of the very type that is expected: a subclass of
// Tensor, say, whose __torch_function__ or __torch_dispatch__ torch.ops would call.
struct Reader {
  PyObject* const* next;
  bool plain;

  Reader(PyObject* const* arguments, bool complete)
      : next(arguments),
        plain(complete && !at::impl::torch_function_mode_enabled() && !torch::jit::tracer::isTracing()) {}

  Tensor tensor() { return plain ? read(*next++) : Tensor(); }

  std::optional<Tensor> optional() {
    if (!plain) return std::nullopt;
    PyObject* argument = *next++;
    return Py_IsNone(argument) ? std::nullopt : std::optional<Tensor>(read(argument));
  }

  Tensors list() {
    Tensors tensors;
    PyObject* argument = plain ? *next++ : nullptr;
    plain = plain && PyList_CheckExact(argument);
    for (Py_ssize_t k = 0; plain && k < PyList_GET_SIZE(argument); ++k)
      tensors.push_back(read(PyList_GET_ITEM(argument, k)));
    return tensors;
  }

  int64_t integer() { return plain ? read_integer(*next++) : 0; }

  std::vector<int64_t> integers() {
    std::vector<int64_t> numbers;
    PyObject* argument = plain ? *next++ : nullptr;
    plain = plain && PyList_CheckExact(argument);
    for (Py_ssize_t k = 0; plain && k < PyList_GET_SIZE(argument); ++k)
      numbers.push_back(read_integer(PyList_GET_ITEM(argument, k)));
    return numbers;
  }

  bool boolean() {
    PyObject* argument = plain ? *next++ : nullptr;
    plain = plain && PyBool_Check(argument);
    return argument == Py_True;
  }

  double number() {
    PyObject* argument = plain ? *next++ : nullptr;
    plain = plain && PyFloat_CheckExact(argument);
    return plain ? PyFloat_AS_DOUBLE(argument) : 0;
  }

  // Lives as long as the argument does.
  std::string_view string() {
    PyObject* argument = plain ? *next++ : nullptr;
    plain = plain && PyUnicode_CheckExact(argument);
    Py_ssize_t length = 0;
    const char* text = plain ? PyUnicode_AsUTF8AndSize(argument, &length) : nullptr;
    if (plain && !text) throw python_error();
    return {text, size_t(length)};
  }

 private:
  Tensor read(PyObject* argument) {
    plain = plain && THPVariable_CheckExact(argument);
    return plain ? THPVariable_Unpack(argument) : Tensor();
  }

  int64_t read_integer(PyObject* argument) {
    plain = plain && PyLong_CheckExact(argument);
    return plain ? PyLong_AsLongLong(argument) : 0;
  }
};

template <class Call>
PyObject* tuple_of(Call call) {
  std::vector<Tensor> outputs;
  {
    pybind11::gil_scoped_release no_gil;
    outputs = call();
  }
  if (outputs.empty()) Py_RETURN_NONE;
  PyObject* results = PyTuple_New(Py_ssize_t(outputs.size()));
  if (!results) throw python_error();
  for (size_t k = 0; k < outputs.size(); ++k) PyTuple_SET_ITEM(results, k, THPVariable_Wrap(std::move(outputs[k])));
  return results;
}

PyObject* rnn_layer(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Reader read(arguments, count == 8);
  const Tensor input = read.tensor();
  const auto h_0 = read.optional(), c_0 = read.optional();
  const Tensors weights = read.list();
  const auto lengths = read.optional(), batch_sizes = read.optional();
  const std::string_view cell = read.string();
  const bool bidirectional = read.boolean();
  if (!read.plain) Py_RETURN_NONE;
  static const auto op = find<LayerSchema>("seq2seq_fast::rnn_layer");
  return tuple_of([&] { return op.call(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional); });
  END_HANDLE_TH_ERRORS
}

PyObject* attention(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Reader read(arguments, count == 11);
  const Tensor query = read.tensor(), key = read.tensor(), value = read.tensor();
  const Tensors masks = read.list();
  const auto lengths = read.optional(), seed = read.optional();
  const bool causal = read.boolean();
  const double dropout = read.number(), scale = read.number();
  const std::string_view weights = read.string(), empty_rows = read.string();
  if (!read.plain) Py_RETURN_NONE;
  static const auto op = find<AttentionSchema>("seq2seq_fast::attention");
  return tuple_of(
      [&] { return op.call(query, key, value, masks, lengths, seed, causal, dropout, scale, weights, empty_rows); });
  END_HANDLE_TH_ERRORS
}

PyObject* decoder(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Reader read(arguments, count == 23);
  Decoding d;
  d.tensors.push_back(read.tensor());
  for (size_t place = embedding; place < weights; ++place) d.tensors.push_back(read.optional().value_or(Tensor()));
  for (Tensor& weight : read.list()) d.tensors.push_back(std::move(weight));
  for (Tensor& kept : read.list()) d.kept.push_back(std::move(kept));
  d.lengths = read.optional();
  d.mask = read.optional();
  d.starts = read.integers();
  d.padding_idx = read.integer();
  d.cell = read.string();
  d.score = read.string();
  d.empty_rows = read.string();
  if (!read.plain) Py_RETURN_NONE;
  return tuple_of([&] { return decoder(std::move(d)); });
  END_HANDLE_TH_ERRORS
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyCFunction fast(Function function) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); }

PyMethodDef functions[] = {{"rnn_layer", fast(rnn_layer), METH_FASTCALL, nullptr},
                           {"attention", fast(attention), METH_FASTCALL, nullptr},
                           {"decoder", fast(decoder), METH_FASTCALL, nullptr},
                           {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace seq2seq_fast

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&seq2seq_fast::module); }
