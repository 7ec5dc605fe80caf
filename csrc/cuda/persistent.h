// The kernel: all steps of a layer in one launch, weight_hh on the chip from the first to the last.
#pragma once

#include "number.h"

#include "../cells/gru.h"
#include "../cells/lstm.h"
#include "../cells/rnn.h"
#include "backward.h"
#include "forward.h"

namespace seq2seq_fast {

template <class E, class Pass, template <class, int> class ExchangeOf>
__global__ void __launch_bounds__(threads, 1)
    persistent_kernel(const __grid_constant__ Loop loop, const __grid_constant__ Plan plan) {
  if constexpr (ExchangeOf<E, Pass::slots>::needs_clusters && !has_clusters) return;
  const Group group{loop, plan};
  ExchangeOf<E, Pass::slots> exchange{group};
  Product<E, Pass::columns, Pass::slots> product{plan, loop.tf32 != 0};
  const Partials<Pass::columns> partials{plan};
  Pass pass{group};

  exchange.start(product.begin, product.end);
  product.load([&](auto... at) { return pass.weight(at...); });
  exchange.publish(pass.start(exchange));
  for (int s = 0; s < Pass::turns(int(loop.steps)); ++s) {
    const int rows = pass.advance(s);
    for (int row = 0; row < rows; row += plan.rows_a_turn) {
      // on their way while the state is not there yet
      pass.load(row);
      if (row == 0) exchange.await();
      const bool two = plan.rows_a_turn > tile_rows && rows - row > tile_rows;
      float sums[2][Pass::columns][4];
      product.multiply([&](int at) { return exchange.read(at); }, row / tile_rows, two, sums);
      partials.write(product.warp, product.lane, two, sums);
      __syncthreads();
      pass.compute(row, partials, exchange);
      if (row + plan.rows_a_turn < rows)
        __syncthreads();
      else
        exchange.publish(rows);
      // after it, since the others do not wait for what only the caller reads
      pass.store(row);
    }
  }
  exchange.finish();
  pass.finish();
}

}  // namespace seq2seq_fast
