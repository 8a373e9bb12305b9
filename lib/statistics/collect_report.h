// What a collecting run says of its layers, and the statistics as they are written: from moments alone.
#pragma once

#include "statistics/collect.h"
#include "statistics/statistics.h"

namespace oscar {

// Traces of a layer's queries and outputs, and what share of them the eight largest eigenvalues carry.
void describe_layer(const LayerMoments& moments, std::int64_t layer, LayerReport& report);

// The line of a layer that is done. layers: of the model.
void print_layer(const LayerReport& report, std::int64_t layers);

// Prompts too short for any far pair leave no metrics behind, rather than zeros. Returns the queries that had a far
// key, of the layer with the most.
double drop_empty_far_pairs(Statistics& statistics);

// What all ranks found, in the report of the first: report.layers are those of the statistics, by place.
void describe_whole(const Statistics& whole, CollectReport& report);

}  // namespace oscar
