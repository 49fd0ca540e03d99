// Which slots of a block a drafter is trained on. Masks [blocks * K], 0: not supervised; block a has the slots a K .. a K + K - 1, slot i = 1 .. K is entry i - 1.
// Each function takes slots away from a mask and puts none back, so they compose in any order (until_failure, which looks at what is left, comes last).
//
// valid_prefix    slots behind the first invalid one go: a drafter that is trained on whole prefixes only (DFlash, DSpark)
// within_horizon  slots i > H_a go; the block that is fed may be cut to H_a as well (DScout: mixed horizon)
// not_revealed    slots whose gold token the drafter was shown go (DScout: intra-block unmasking)
// until_failure   slots behind the first supervised one that the drafter got wrong go; that one stays. Slots that are already out neither end a block nor
//                 count (AUF). Slot 1, if valid, always stays; all right: nothing goes
//
// draw_horizon    H ~ pi on {1 .. K} of one block
// draw_revealed   a random subset of the slots of one block: the rate is U[0, highest_rate], then each slot is revealed with that probability
// Random numbers: of the caller's key (seed, request, position: say, the anchor) those of purpose::dropout, index 0 for the horizon and i for slot i, and of
// purpose::dropout_rate, index 0, for the rate. Blocks have keys of their own, so a block's draws depend on no other block.
// Errors: sizes, horizons outside [0, K], probabilities that are negative or sum to 0, rates outside [0, 1]. Cost O(blocks K).
//
//     losses::within_horizon(included, 8, horizons);
//     losses::not_revealed(included, revealed);
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses::inline HEDDLE_ISA {

/// Number of blocks of `rows` rows.
inline std::int64_t blocks_of(const char* function, std::int64_t rows, std::int64_t block) {
  require(block >= 1, function, ": argument 'block' is ", block, "; expected at least 1 slot");
  require(rows % block == 0, function, ": ", rows, " rows are no whole number of blocks of ", block, " slots");
  return rows / block;
}

inline void valid_prefix(std::span<std::uint8_t> included, std::int64_t block) {
  blocks_of("losses::valid_prefix", static_cast<std::int64_t>(included.size()), block);
  const auto slots = static_cast<std::size_t>(block);
  for (std::size_t r = 0; r < included.size(); ++r) included[r] = included[r] && (r % slots == 0 || included[r - 1]);
}

inline void within_horizon(std::span<std::uint8_t> included, std::int64_t block, std::span<const std::int32_t> horizons) {
  const std::int64_t blocks = blocks_of("losses::within_horizon", static_cast<std::int64_t>(included.size()), block);
  require(static_cast<std::int64_t>(horizons.size()) == blocks, "losses::within_horizon: argument 'horizons' has ", horizons.size(), " entries; expected one per block, ", blocks);
  for (std::size_t a = 0; a < horizons.size(); ++a) require(horizons[a] >= 0 && horizons[a] <= block, "losses::within_horizon: argument 'horizons': entry ", a, " is ", horizons[a], "; expected 0 to ", block);
  const auto slots = static_cast<std::size_t>(block);
  for (std::size_t r = 0; r < included.size(); ++r) included[r] = included[r] && static_cast<std::int64_t>(r % slots) < horizons[r / slots];
}

inline void not_revealed(std::span<std::uint8_t> included, std::span<const std::uint8_t> revealed) {
  require(revealed.size() == included.size(), "losses::not_revealed: argument 'revealed' has ", revealed.size(), " entries; expected ", included.size());
  for (std::size_t r = 0; r < included.size(); ++r) included[r] = included[r] && !revealed[r];
}

/// correct[r]: the drafter's most likely token at r is the label.
inline void until_failure(std::span<std::uint8_t> included, std::int64_t block, std::span<const std::uint8_t> correct) {
  blocks_of("losses::until_failure", static_cast<std::int64_t>(included.size()), block);
  require(correct.size() == included.size(), "losses::until_failure: argument 'correct' has ", correct.size(), " entries; expected ", included.size());
  const auto slots = static_cast<std::size_t>(block);
  bool failed = false;
  for (std::size_t r = 0; r < included.size(); ++r) {
    if (r % slots == 0) failed = false;
    if (!included[r]) continue;
    included[r] = !failed;
    failed |= !correct[r];
  }
}

/// probabilities [K], not necessarily summing to 1.
inline std::int32_t draw_horizon(random_key key, std::span<const double> probabilities) {
  double sum = 0;
  for (std::size_t h = 0; h < probabilities.size(); ++h) {
    require(probabilities[h] >= 0. && probabilities[h] < math::infinity, "losses::draw_horizon: argument 'probabilities': entry ", h, " is ", probabilities[h], "; expected a finite number, 0 or more");
    sum += probabilities[h];
  }
  require(sum > 0. && sum < math::infinity, "losses::draw_horizon: argument 'probabilities' sums to ", sum, "; expected a positive finite number");
  key.purpose = purpose::dropout, key.index = 0;
  const double u = uniform(key) * sum;
  double reached = 0;
  std::int32_t last = 0;
  for (std::size_t h = 0; h < probabilities.size(); ++h) {
    if (probabilities[h] == 0.) continue;
    reached += probabilities[h], last = static_cast<std::int32_t>(h) + 1;
    if (reached > u) break;
  }
  return last;
}

inline void draw_revealed(random_key key, double highest_rate, std::span<std::uint8_t> revealed) {
  require(highest_rate >= 0. && highest_rate <= 1., "losses::draw_revealed: argument 'highest_rate' is ", highest_rate, "; expected 0 to 1");
  key.purpose = purpose::dropout_rate, key.index = 0;
  const double rate = highest_rate * uniform(key);
  key.purpose = purpose::dropout;
  for (std::size_t i = 0; i < revealed.size(); ++i) key.index = static_cast<std::uint32_t>(i) + 1, revealed[i] = uniform(key) < rate;
}

}  // namespace heddle::losses::inline HEDDLE_ISA
