#!/bin/sh
# run_unit.sh CPU PROGRAM UNIT: runs a unit on an emulated processor; 77 (skipped) without the emulator.
command -v qemu-x86_64 >/dev/null || { echo "qemu-x86_64 not found"; exit 77; }
exec qemu-x86_64 -cpu "$1" "$2" "$3"
