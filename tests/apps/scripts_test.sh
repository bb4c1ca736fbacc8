#!/usr/bin/env bash
# script/setup, script/test and script/gpu_check from outside: usage, machines that lack something, and the table of a run, over
# programs that only say what a device's would. With a folder of test programs, whether those have the tests that are asked for.
set -u
source="$1"
bin="${2:-}"
failures=0
check() {  # check NAME EXPECTED FOUND
  if [[ "$2" != "$3" ]]; then
    echo "FAILED $1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}
said() { local out; out=$("$@" 2>&1); echo "$? $out"; }  # status and everything that was written
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/build/bin" "$work/driver"
gpu_check() { PATH="$work/driver:$work/tools" said "$source/script/gpu_check" "$@"; }
for tool in bash dirname echo grep tail head xargs tee mktemp mkdir rm cat; do
  ln -s "$(type -P "$tool")" "$work/tools/$tool"
done

check "setup, unknown option" "2 setup: unknown option '--devel', expected --dev, --cuda, --check or --and" "$(said "$source/script/setup" --devel)"
for script in build setup compilers; do
  check "$script --help" "0 1" "$? $("$source/script/$script" --help | grep -c "^Usage: $script ")"
done
check "a Debian that there is not" "2 debian_root: unknown release '11', expected 12 or 13" "$(said "$source/tools/debian_root" 11)"
check "setup --cuda without nvcc" 1 "$(PATH="$work/tools:/bin" said "$source/script/setup" --cuda | grep -c "^1 setup: script/build cuda needs nvcc of CUDA 13 or newer on the PATH, found none")"
check "setup --check without nvcc" 1 "$(PATH="$work/tools:/bin" said "$source/script/setup" --check | grep -c "^1 setup: script/build cuda needs nvcc of CUDA 13 or newer on the PATH, found none")"
# A toolkit of nvcc alone, and what the others bring.
toolkit="$work/toolkit"
mkdir -p "$toolkit"/{bin,include,lib64}
cat >"$toolkit/bin/nvcc" <<SH
#!/bin/bash
[[ "\$1" == --version ]] && echo "Cuda compilation tools, release 13.2, V13.2.1" || echo "#\$ TOP=$toolkit/bin/.."
SH
chmod +x "$toolkit/bin/nvcc"
setup() { PATH="$toolkit/bin:$PATH" said "$source/script/setup" "$@"; }
if [[ ! -e /usr/include/cublasLt.h ]]; then
  check "setup --cuda without cuBLASLt" "1 setup: script/build cuda needs cuBLASLt, of which nvcc's toolkit has no cublasLt.h; NVIDIA's package libcublas-dev-13-2 brings its header and its library" "$(setup --cuda)"
  check "setup --check without cuBLASLt" 1 "$(setup --check | grep -c "^1 setup: script/build cuda needs cuBLASLt, of which nvcc's toolkit has no cublasLt.h")"
  touch "$toolkit/include/cublasLt.h"
  check "setup --check without its library" 1 "$(setup --check | grep -c "^1 setup: script/build cuda needs cuBLASLt, of which nvcc's toolkit has no libcublasLt.so")"
fi
touch "$toolkit/include/cublasLt.h" "$toolkit/lib64/libcublasLt.so"
check "setup --check with a toolkit" 0 "$(setup --check | grep -c cuBLASLt)"
for script in setup build demo test bundle exam clients; do
  check "$script's usage" "0 1" "$("$source/script/$script" --help >/dev/null 2>&1; echo $?) $("$source/script/$script" -h 2>&1 | grep -c "^Usage: $script")"
done
check "test, unknown option" "2 test: unknown option '--fast', expected --exhaustive" "$(said "$source/script/test" --fast)"

check "gpu_check's usage" "0 1 1" "$(said "$source/script/gpu_check" --help | sed 's/ .*//;q') $(said "$source/script/gpu_check" --help | grep -c '^Usage: gpu_check ') $(said "$source/script/gpu_check" --help | grep -c 'Building needs nvcc of CUDA 13 or newer, cuBLASLt ')"
check "unknown option" "2 gpu_check: unknown option '--fast', expected --quick or --sanitize" "$(gpu_check --fast)"
check "no build" 1 "$(gpu_check "$work/nothing" | grep -c "^2 gpu_check: $work/nothing is no build with CUDA: ")"
touch "$work/build/bin/libheadrace_cuda.so"
check "two builds" "2 gpu_check: 'b' is a second build, expected one at most" "$(gpu_check "$work/build" b)"
check "no driver" "6 gpu_check: no NVIDIA driver here: nvidia-smi was not found" "$(gpu_check "$work/build")"

# A test of a device that gpu_check does not start runs nowhere.
missing=""
for file in $(grep -lE 'mirrored_cuda_ops|HR_INSTANTIATE_KERNEL_SETS|"cuda"' "$source"/tests/*/*_test.cpp); do
  test=$(tr '\n' ' ' <"$(dirname "$file")/CMakeLists.txt" | grep -oE 'headrace_test\([^)]*' | grep -F " $(basename "$file")" |
    sed 's/headrace_test(\([a-z0-9_]*\).*/\1/')
  grep -qw "${test:-none of $file}" "$source/script/gpu_check" || missing+=" $test"
done
check "every program with tests of a device is in gpu_check" "" "$missing"

# So does a test with a device's part whose name does not say so, where only tests with such names are run.
whole=$(grep -oP -m 1 'for test in \K[^;]*' "$source/script/gpu_check" | xargs | tr ' ' '|')
unnamed=""
for file in $(grep -lE 'mirrored_cuda_ops|has_cuda|cuda_module' "$source"/tests/*/*_test.cpp); do
  tr '\n' ' ' <"$(dirname "$file")/CMakeLists.txt" | grep -qE "headrace_test\(($whole) [^)]*$(basename "$file")" && continue
  unnamed+=$(awk '/^TEST/ { name = $1 $2 } name != "" && /mirrored_cuda_ops|has_cuda\(|cuda_module\(|kCudaSets|kCuda\)/ { print " " name; name = "" }
                  /^}/ || /}$/ && /^TEST/ { name = "" }' "$file" | grep -vE 'cuda|Cuda|OnDevice|OnADevice')
done
check "every test of a device has a name that gpu_check looks for" "" "$unnamed"

program() {  # program PATH: a script of what is read
  cat >"$1"
  chmod +x "$1"
}
program "$work/driver/nvidia-smi" <<<$'#!/bin/bash\necho "NVIDIA-SMI has failed"; exit 9'
check "no GPU" "6 gpu_check: no GPU answers: NVIDIA-SMI has failed" "$(gpu_check "$work/build")"
program "$work/driver/nvidia-smi" <<<$'#!/bin/bash\necho "A GPU, 580, 1 MiB"'
program "$work/build/bin/headrace" <<<$'#!/bin/bash\necho "gpu      none: cuda: the driver is too old"'
mkdir "$work/tree"
cp -r "$source/script" "$work/tree/"
ln -s "$(type -P sed)" "$work/tools/sed"
for tool in nvcc dpkg-query; do program "$work/driver/$tool" <<<$'#!/bin/bash\nexit 1'; done
check "nothing to build with" 1 "$(PATH="$work/driver:$work/tools" said "$work/tree/script/gpu_check" |
  grep -c '^2 gpu_check: there is no build in build/cuda, and script/build cuda needs nvcc of CUDA 13 or newer on the PATH, found none, and the packages build-essential cmake .*, which script/setup installs$')"
rm "$work/driver/nvcc" "$work/driver/dpkg-query"
check "a GPU that cannot be used" $'6 A GPU, 580, 1 MiB\ngpu_check: cuda: the driver is too old' "$(gpu_check "$work/build")"
check "no sanitizer" 1 "$(gpu_check --sanitize "$work/build" | grep -c "^2 gpu_check: compute-sanitizer was not found")"

# A whole run.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null) || { echo "skipped: the table (no python3 here)"; [[ $failures -eq 0 ]]; exit; }
program "$work/tools/python3" <<<$'#!/bin/bash\n[[ "$1" == -c ]] && exit 1  # no torch\n[[ "$1" == *random_checkpoint.py ]] && exec mkdir "$3"\nexec '"$python"$' "$@"'
for test in cuda_fault_test cuda_devices_test two_engines_test attention_test attention_step_test swiglu_gemm_test small_m_gemm_test gemm_sequence_test paged_attention_test gdn_test dense_test \
            token_confidence_test fused_linear_test attention_conformance model_golden_test diffusion_golden_test \
            decoding_golden_test refining_golden_test diffusion_defects_test cuda_graph_test layers_test \
            canvas_golden_test engine_golden_test sampling_test llm_test diffusion_demo_test adapter_golden_test; do
  program "$work/build/bin/$test" <<SH
#!/bin/bash
echo "\${0##*/} \$*" >>"$work/tests"
echo "\$HEADRACE_SOURCE_DIR" >>"$work/sources"
[[ "\${0##*/}" != gdn_test ]] || echo "\${GTEST_SHARD_INDEX:-}/\${GTEST_TOTAL_SHARDS:-}" >>"$work/gdn_shards"
echo "[  PASSED  ] 3 tests."
SH
done
for fuzz in attention_fuzz gdn_fuzz engine_fuzz; do
  program "$work/build/bin/$fuzz" <<SH
#!/bin/bash
echo "\${0##*/} \$*" >>"$work/fuzzes"
echo "\${0##*/}: 3 cases in 1.0 s, all right"
SH
done
program "$work/build/bin/headrace" <<'SH'
#!/bin/bash
case "$1 $2" in
  "bench model")
    echo '{"name": "model decode batch 1 Qwen3_5ForCausalLM bfloat16 cuda:0", "median_s": 0.00085}'
    echo '{"name": "model prefill of 16384 tokens Qwen3_5ForCausalLM", "median_s": 0.045}'
    ;;
  "bench blocks") echo '{"name": "blocks batch 128 behind 256 tokens X", "over_floor": 1.6, "tokens_per_s": 13000}' ;;
  generate*) [[ -d "$2" ]] && echo '{"text": "x", "timings": {"device_start_s": 0.31, "first_token_s": 0.55}}' ;;
  doctor*) echo "gpu      cuda:0" ;;
esac
SH
program "$work/build/bin/attention_gpu_bench" <<SH
#!/bin/bash
echo "\$*" >>"$work/parts"
SH
cat >>"$work/build/bin/attention_gpu_bench" <<'SH'
echo '{"name": "limits", "copy_tbytes_per_s": 4.2, "read_tbytes_per_s": 4.6}'
for mode in fast strict; do
  echo '{"name": "decode b64 8k", "mode": "'$mode'", "page_size": 16, "median_s": 5.0e-04, "tbytes_per_s": 4.26, "copy_tbytes_per_s": 4.2}'
  echo '{"name": "decode b64 8k", "mode": "'$mode'", "page_size": 64, "median_s": 4.9e-04, "tbytes_per_s": 4.37, "copy_tbytes_per_s": 4.2, "upload_s": 8e-6, "host_step_s": 9e-6}'
  echo '{"name": "decode b64 zipf", "mode": "'$mode'", "tbytes_per_s": 4.09}'
  echo '{"name": "decode b1 32k", "mode": "'$mode'", "median_s": 5.0e-05}'
  echo '{"name": "diffusion 64 x block 4, 4k", "mode": "'$mode'", "median_s": 2.7e-4}'
  for part in "decode b32 8k alone" "prefill 2048 32/8 d128" "mixed: 32 decode at 8k + prefill 2k"; do
    echo '{"name": "'$part'", "mode": "'$mode'", "median_s": 1e-4, "tflops": 440}'
  done
done
SH
program "$work/build/bin/gdn_gpu_bench" <<<$'#!/bin/bash\necho \'{"name": "gdn_prefill_8x4096", "set": "cuda", "median_s": 4.1e-4}\''
ran=$(gpu_check "$work/build")
row() { grep -cFx "$1" <<<"$ran"; }
check "the run's status" 0 "${ran%% *}"
check "tests that passed, long ones in shards" 39 "$(grep -c '^passed: .*: \[ PASSED \] 3 tests.$' <<<"$ran")"
check "each shard is one of all" "gdn_test 0/3 1/3 2/3" "gdn_test $(sort "$work/gdn_shards" | xargs)"
check "where the tests' files are" "$(cd "$source" && pwd)" "$(sort -u "$work/sources")"
check "how long it took" 1 "$(grep -c '^took [0-9]* s: building [0-9]* s, tests [0-9]* s, benches [0-9]* s$' <<<"$ran")"
check "cases of attention that are measured" "decode prefill diffusion mixed fp8" "$(xargs <"$work/parts")"
check "random cases that passed" 6 "$(grep -c '^passed: .*_fuzz.[12]: .*_fuzz: 3 cases in 1.0 s, all right$' <<<"$ran")"
check "random cases of the baseline" "attention_fuzz gdn_fuzz" "$(sort -u "$work/fuzzes" | grep -oP '.*(?= --backend cuda_baseline )' | xargs)"
program "$work/tools/compute-sanitizer" <<<$'#!/bin/bash\nshift 4\nexec "$@"'
check "the sanitizers' run" "0 " "$(gpu_check --sanitize "$work/build" | sed -n '1s/ A GPU.*/ /p')"

if [[ -x "$bin/sampling_test" ]]; then
  check "a build that was made elsewhere" 1 "$(HEADRACE_SOURCE_DIR="$work" "$bin/sampling_test" --gtest_filter='*Filters*/reference' | grep -c -m 1 "$work/tests/golden/filters.json")"
fi

if [[ -x "$bin/headrace" ]]; then
  mkdir "$work/shape"
  sed 's/"vocab_size": 272/"vocab_size": 5000/' "$source/tests/golden/qwen3_5/config.json" >"$work/shape/config.json"
  "$python" "$source/bench/random_checkpoint.py" "$work/shape" "$work/checkpoint"
  check "a random checkpoint is read" 1 "$("$bin/headrace" generate "$work/checkpoint" --device cpu -c 64 -p "Once" -n 1 --json | grep -c '"completion_tokens": 1')"
fi

# A name that is asked for and that no test has is a test that does not run: each of a list, one of those for any device.
while read -r name arguments; do
  [[ -x "$bin/$name" ]] || continue
  filter='*'
  [[ "$arguments" != *--gtest_filter=* ]] || filter=${arguments##*--gtest_filter=}
  [[ "$filter" == *OnADevice* ]] || filter=${filter//:/ }
  set -f
  for pattern in $filter; do
    "$bin/$name" --gtest_list_tests --gtest_filter="$pattern" | grep '^  ' >/dev/null ||
      check "a test of $name" "one that is called $pattern" "none"
  done
  set +f
done < <(sort -u "$work/tests")

check "row of attention" 1 "$(row '| prefill 2048 32/8 d128 | 480 | 440 | 440 | TFLOP/s | – | – |')"
check "row of a page size" 1 "$(row '| decode 64 x 8k, page 64 | the peer or 4.37 | 4.37 | 4.37 | TB/s | – | – |')"
check "row by the copy" 1 "$(row '| decode 64, 256 to 64k (Zipf) | 3.78 | 4.09 | 4.09 | TB/s | – | – |')"
check "row of the host" 1 "$(row '| host work per step, batch 64: padding, upload, plan | 10 | 9.0 | 9.0 | us | – | – |')"
check "row of its upload" 1 "$(row '| the upload in it | – | 8.0 | 8.0 | us | – | – |')"
check "row of what strict mode has no record of" 1 "$(row '| GDN prefill 8 x 4096 | 0.31 | 0.410 | – | ms | – | – |')"
check "row of what was not measured" 1 "$(row '| GDN prefill 1 x 32768 | 0.40 | – | – | ms | – | – |')"
check "row of a model" 1 "$(row "| Qwen3.5-0.8B's shape, decode step, batch 1 | 0.44 | 0.850 | – | ms | – | – |")"
check "row of a prompt" 1 "$(row '| the same, prefill of 16k tokens | 45 | 45.000 | – | ms | – | – |')"
check "row of blocks" 1 "$(row "| SDAR-4B's shape, 128 requests behind 256 tokens, a step over its floor | 1.3 | 1.60 | – | x | – | – |")"
check "row of the mixed batch" 1 "$(row '| 32 decode rows at 8k + one prompt of 2k, of the two apart | 0.85 | 0.50 | 0.50 | x | – | – |')"
check "row of the start" 1 "$(row '| start to first token (0.31 s of it until the device was ready) | 1.5 | 0.55 | – | s | – | – |')"

# Peers, and a test that fails.
cat >"$work/peers" <<'LINES'
A GPU, torch 2
FlashAttention-3 is not importable: No module named 'vllm'
{"peer": "cuDNN, dense", "name": "decode b1 32k", "median_s": 5.15e-05, "page_size": 64}
{"peer": "FlashInfer 0.5", "name": "decode b1 32k", "median_s": 5.3e-05, "page_size": 64}
{"peer": "FlashInfer 0.5", "name": "decode b64 8k", "median_s": 4.9e-04, "page_size": 16}
{"peer": "FlashInfer 0.5, plan()", "name": "decode b64 8k", "page_size": 64, "host_step_s": 9e-05}
{"peer": "cuDNN, dense", "name": "decode b64 zipf", "skipped": "its requests have one length", "page_size": 64}
{"peer": "fla", "name": "gdn_prefill_8x4096", "median_s": 0.0024}
{"peer": "FlashInfer 0.7", "name": "gdn_prefill_8x4096", "median_s": 0.00041}
{"peer": "vLLM 1", "name": "model decode batch 1 Qwen3ForCausalLM", "median_s": 0.0001}
{"peer": "vLLM 1", "name": "model decode batch 1 Qwen3_5ForCausalLM", "median_s": 0.0017}

| work | peer | median | rate |
| decode b1 32k, page 64 | cuDNN, dense | 51.5 µs | |
LINES
{ "$work/build/bin/attention_gpu_bench" && "$work/build/bin/gdn_gpu_bench" && "$work/build/bin/headrace" bench model; } >"$work/ours"
ran=$("$python" "$source/bench/gpu_table.py" "$work/ours" "$work/peers")
check "row of a peer" 1 "$(row '| decode 1 x 32k | 38 | 50.0 | 50.0 | us | cuDNN, dense 51.5 us | 1.03 |')"
check "row of a peer of one page size" 1 "$(row '| decode 64 x 8k, page 16 | the peer or 4.37 | 4.26 | 4.26 | TB/s | FlashInfer 0.5 490.0 us | 0.98 |')"
check "row of another page size" 1 "$(row '| decode 64 x 8k, page 64 | the peer or 4.37 | 4.37 | 4.37 | TB/s | – | – |')"
check "row of a peer on the host" 1 "$(row '| host work per step, batch 64: padding, upload, plan | 10 | 9.0 | 9.0 | us | FlashInfer 0.5, plan() 90.0 us | 10.00 |')"
check "row of the best of two peers" 1 "$(row '| GDN prefill 8 x 4096 | 0.31 | 0.410 | – | ms | FlashInfer 0.7 410.0 us | 1.00 |')"
check "row of a model's peer" 1 "$(row "| Qwen3.5-0.8B's shape, decode step, batch 1 | 0.44 | 0.850 | – | ms | vLLM 1 1700.0 us | 2.00 |")"
check "a case that a peer skips" 1 "$(row '| decode 64, 256 to 64k (Zipf) | 3.78 | 4.09 | 4.09 | TB/s | – | – |')"

# The peers' script without PyTorch.
nowhere() { (cd "$work" && PYTHONPATH='' "$python" -B -S "$source/bench/peers_gpu.py" "$@" 2>&1); }
check "peers' cases" "prefill 8, decode 15, diffusion 2, mixed 3, gdn 8" "$(nowhere --list | grep -oP '"part": "\K[a-z]*' | uniq -c | awk '{printf "%s%s %s", sep, $2, $1; sep=", "}')"
check "a case's work" 1 "$(nowhere --list | grep -cF '"name": "decode b1 32k", "page_size": 64, "requests": 1, "keys": 32768, "flops": 536870912, "bytes": 134234112')"
check "peers without PyTorch" "peers_gpu.py: PyTorch is not importable: No module named 'torch'" "$(nowhere)"
check "an unknown part" 1 "$(nowhere prefil | grep -c "error: 'prefil' is no part, expected limits, prefill, decode, ")"
check "peers' help" 1 "$(nowhere --help | grep -c '^ *--seed SEED')"
program "$work/build/bin/layers_test" <<<$'#!/bin/bash\necho "a test that failed"; exit 1'
ran=$(gpu_check "$work/build")
check "a run with a failure" "1 1 1" "${ran%% *} $(grep -c '^FAILED: layers_test$' <<<"$ran") $(grep -c '^gpu_check: failed: layers_test; ' <<<"$ran")"

[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
