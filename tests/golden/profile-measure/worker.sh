#!/bin/sh
# Stands for moefold-measure (executor/measure/measure_worker.h): times that follow from the number of a point.
#   MF_TEST_BUSY=1 another process   MF_TEST_HOT=1 throttled   MF_TEST_NONE=1 no GPU
#   MF_TEST_DRIVER=N another driver, under which times are taken again
#   MF_TEST_BUSY=-1 nobody says who else is there   MF_TEST_HEAT=N too hot to go on after N points
#   MF_TEST_STOP=N ends after N points without a word   MF_TEST_INTERRUPT=N interrupts its parent
tab=$(printf '\t')
if [ -n "${MF_TEST_NONE:-}" ]; then
    echo "error${tab}2${tab}no GPU to measure (none found)"
    exit 2
fi
printf 'machine\tdevice=NVIDIA H200\tgpu=h200\tmemory_B=150e9\tgpus=%s\tprocesses=%s\thot=%s\tsm_MHz=1980\ttemperature_C=%s\tversions=cuda=99.0 driver=%s\tnccl=%s\n' \
    "${MF_TEST_GPUS:-1}" "${MF_TEST_BUSY:-0}" "${MF_TEST_HOT:-0}" 36 "${MF_TEST_DRIVER:-1}" 2.99
done=0
while IFS="$tab" read -r number key choice; do
    if [ "$done" = "${MF_TEST_STOP:-none}" ]; then exit 1; fi
    if [ "$done" = "${MF_TEST_INTERRUPT:-none}" ]; then
        kill -INT "$PPID"
        exit 130
    fi
    if [ "$done" = "${MF_TEST_HEAT:-none}" ]; then
        echo "error${tab}2${tab}the GPU is throttled at 1200 MHz and 88 C"
        exit 2
    fi
    done=$((done + 1))
    case $key in
    gemm*) printf 'point\t%s\t%s.5e-5\t%s.4e-5\t%s.6e-5\t70\t1980\t37\t%s\n' "$number" "$done" "$done" "$done" \
        "${choice:+again }${choice:-cublas-99 found for $key}" ;;
    "attention pass=bwd"*) printf 'refused\t%s\tno kernel\n' "$number" ;;
    *) printf 'point\t%s\t%s.5e-5\t%s.4e-5\t%s.6e-5\t70\t1980\t37\n' "$number" "$done" "$done" "$done" ;;
    esac
done
echo end
