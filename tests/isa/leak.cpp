// What must not happen: arithmetic in a function whose name is the same in every unit.
[[gnu::noinline]] inline float leaking_sum(const float* x, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i];
  return sum;
}

float call(const float* x, int n) { return leaking_sum(x, n); }
