"""The recurrent loop on a GPU: csrc/cuda by its C interface, the choice of a form, and the operators on CUDA."""
