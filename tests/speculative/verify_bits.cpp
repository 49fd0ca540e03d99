#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/saki.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <heddle/speculative/verify/typical.hpp>
#include "support/bits.hpp"

HEDDLE_BITS(speculative_verify, report) {
  using namespace heddle;
  constexpr std::int64_t vocabulary = 12, nodes = 7;
  constexpr std::int32_t parents[nodes] = {-1, 0, 0, 1, 1, 2, 3}, rows[nodes] = {0, 1, 2, 3, -1, -1, -1};
  heddle_bits::inputs in{11};
  verify_workspace memory(vocabulary);
  heddle_bits::vector<std::int32_t> matched, accepted, common, typical, block, interpolated;
  for (std::uint64_t round = 0; round < 300; ++round) {
    std::int32_t tokens[nodes];
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(in.next() % vocabulary);
    if (tokens[2] == tokens[1]) tokens[2] = (tokens[1] + 1) % vocabulary;
    if (tokens[4] == tokens[3]) tokens[4] = (tokens[3] + 1) % vocabulary;
    const auto logits = in.uniform(nodes * vocabulary);
    auto laws = in.uniform(4 * vocabulary);
    for (float& q : laws) q = q * q + 0.1f;
    const tensor_view z{logits.data(), extents{nodes, vocabulary}};
    const sampling::chain policy{sampling::temperature(0.6f), sampling::top_p(0.95f)};
    const std::int32_t committed[] = {3, 1, tokens[0]};
    const auto record = [](heddle_bits::vector<std::int32_t>& list, const auto& verdict) {
      list.push_back(verdict.accepted);
      list.insert(list.end(), verdict.tokens.begin(), verdict.tokens.end());
    };
    record(matched, verify::match{.seed = round}(draft_tree<draft_law::deterministic>{tokens, parents}, z, policy, committed, memory));
    const draft_tree<draft_law::independent> sampled{tokens, parents, {.row_of = rows, .dense = tensor_view<const float, 2>(tensor_view{laws.data(), extents{4, vocabulary}})}};
    record(accepted, verify::token{.seed = round}(sampled, z, policy, committed, memory));
    record(common, verify::k_seq{.seed = round}(sampled, z, policy, committed, memory));
    record(typical, verify::typical{.seed = round}(sampled, z, policy, committed, memory));
    constexpr std::int32_t chain_parents[4] = {-1, 0, 1, 2};
    const draft_tree<draft_law::independent> chain{{tokens, 4}, chain_parents, {.row_of = {rows, 4}, .dense = sampled.laws.dense}};
    record(block, verify::block{.seed = round}(chain, z, policy, committed, memory));
    constexpr std::int32_t every_row[4] = {0, 1, 2, 3};
    const draft_tree<draft_law::independent> student{{tokens, 4}, chain_parents, {.row_of = every_row, .dense = sampled.laws.dense}};
    record(interpolated, verify::saki{.seed = round, .radius = 0.3}(student, z, policy, committed, memory));
  }
  report.add("speculative/match", matched);
  report.add("speculative/token", accepted);
  report.add("speculative/k_seq", common);
  report.add("speculative/typical", typical);
  report.add("speculative/block", block);
  report.add("speculative/saki", interpolated);
}
