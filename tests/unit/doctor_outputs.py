"""What commands print, retyped and shortened, each with the place it was seen at.

``SEEN`` outputs come from a real machine (public issues, or this one). ``NOT_SEEN`` ones were put
together from the tool's own documentation or from its relatives: they test the parser, and say
nothing about what a machine prints.
"""

from __future__ import annotations

from hwtune.domain.doctor import cpu, npu, nvidia, rocm
from hwtune.domain.doctor.records import CommandOutput


def said(argv: tuple[str, ...], stdout: str, failure: str | None = None) -> CommandOutput:
    return CommandOutput(argv=argv, stdout=stdout, failure=failure)


# NOT_SEEN as one row: the fields one by one are from triton-inference-server pull request 8070
# (compute_cap, name, driver) and vllm issue 55169 (81559MiB).
NVIDIA_H100 = said(
    nvidia.GPU_QUERY,
    "0, NVIDIA H100 80GB HBM3, 9.0, 81559, 4, 580.105.08\n"
    "1, NVIDIA H100 80GB HBM3, 9.0, 81559, 46867, 580.105.08\n",
)

# SEEN: unsloth pull request 10703, DGX Spark; index, name and memory; the rest as above.
NVIDIA_GB10 = said(nvidia.GPU_QUERY, "0, NVIDIA GB10, 12.1, [N/A], [N/A], 580.142\n")

# SEEN: candle issue 733, driver 470.182.03.
NVIDIA_470 = said(
    nvidia.GPU_QUERY,
    'Field "compute_cap" is not a valid field to query.\n\n',
    'exit status 2: Field "compute_cap" is not a valid field to query.',
)

# SEEN: mozilla translations issue 1167.
NVIDIA_MISMATCH = said(
    nvidia.GPU_QUERY,
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n",
    "exit status 18: Failed to initialize NVML: Driver/library version mismatch",
)

# SEEN: ArcticTraining pull request 345.
NVIDIA_HEADER = said(
    nvidia.HEADER,
    "+-----------------------------------------------------------------------------------------+\n"
    "| NVIDIA-SMI 580.126.09             Driver Version: 580.126.09     CUDA Version: 13.0     |\n",
)

# NOT_SEEN in CSV; the process is that of a table in DCGM issue 83.
NVIDIA_PROCESSES = said(
    nvidia.PROCESS_QUERY, "3518784, python3, 452\n29153, VLLM::EngineCore, [N/A]\n"
)

# SEEN: gpustack issue 2032, rocm-smi of the DTK on eight Hygon K100_AI.
DCU_SMI = said(
    ("hy-smi", *rocm.SMI_OPTIONS),
    '{"card0": {"Device ID": "0x6210", "Card Series": "K100_AI", '
    '"Card Vendor": "Chengdu Haiguang IC Design Co., Ltd.", "HCU use (%)": "0.0", '
    '"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "2"}, '
    '"card1": {"Device ID": "0x6210", "Card Series": "K100_AI", '
    '"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "60000"}}\n',
)

# SEEN: marimo issue 9237.
ROCM_SMI = said(
    ("rocm-smi", *rocm.SMI_OPTIONS),
    '{\n  "card0": {\n    "GPU use (%)": "0",\n    "VRAM Total Memory (B)": "21458059264",\n'
    '    "VRAM Total Used Memory (B)": "27856896",\n    "Card Series": "Radeon RX 7900 XT",\n'
    '    "Card Model": "0x744c",\n    "GFX Version": "gfx1100"\n  }\n}\n',
)

# SEEN: systeminformation pull request 960, where the JSON has neither series nor VRAM in bytes.
ROCM_SMI_APU = said(
    ("rocm-smi", *rocm.SMI_OPTIONS),
    '{"card0": {"Device Name": "Phoenix3", "Device ID": "0x1900", "GUID": "45560", '
    '"GPU Memory Allocated (VRAM%)": "87"}}',
)

# SEEN: ROCm issue 4411 (MI300: a process that only opened /dev/kfd); the second row is NOT_SEEN.
KFD_PROCESSES = said(
    ("rocm-smi", *rocm.PIDS_OPTIONS),
    "============================ ROCm System Management Interface ============================\n"
    "===================================== KFD Processes ======================================\n"
    "KFD process information:\n"
    "PID    \tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA USED\tCU OCCUPANCY\t\n"
    "1075718\tkfd_open    \t0     \t0        \t0        \t0           \t\n"
    "4242   \tVLLM::EngineCor\t2  \t57000000000\t0      \t0           \t\n"
    "==========================================================================================\n",
)

# SEEN: gpustack issue 1508 (Hygon, the CPU agent) and ROCm issue 4414 (the gfx942 agent); the DCU
# agent's fields are the latter's with Hygon's names.
ROCMINFO_DCU = said(
    rocm.ROCMINFO,
    "hygon module is loaded\n=====================    \nHSA System Attributes    \n"
    "=====================    \nRuntime Version:         1.1\n\n==========               \n"
    "HSA Agents               \n==========               \n*******                  \n"
    "Agent 1                  \n*******                  \n"
    "  Name:                    Hygon C86 3350  8-core Processor   \n"
    "  Marketing Name:          Hygon C86 3350  8-core Processor   \n"
    "  Vendor Name:             HygonGenuine                       \n"
    "  Device Type:             CPU                                \n"
    "*******                  \nAgent 2                  \n*******                  \n"
    "  Name:                    gfx936                             \n"
    "  Uuid:                    GPU-8af705259683161c               \n"
    "  Marketing Name:          BW1000                             \n"
    "  Device Type:             GPU                                \n"
    "  ISA Info:                \n    ISA 1                    \n"
    "      Name:                    amdgcn-amd-amdhsa--gfx936:sramecc+:xnack-\n"
    "*******                  \nAgent 3                  \n*******                  \n"
    "  Name:                    gfx936                             \n"
    "  Marketing Name:          BW1000                             \n"
    "  Device Type:             GPU                                \n"
    "*** Done ***             \n",
)

# SEEN: rocm-systems pull request 2987.
AMD_SMI = said(
    rocm.AMD_SMI,
    "GPU: 0\n    ASIC:\n        MARKET_NAME: AMD Instinct MI350X\n        VENDOR_ID: 0x1002\n"
    "        DEVICE_ID: 0x75a0\n        NUM_COMPUTE_UNITS: 128\n"
    "        TARGET_GRAPHICS_VERSION: gfx950\n        FLAGS: 16\n\n"
    "GPU: 1\n    ASIC:\n        MARKET_NAME: Phoenix3\n        VENDOR_ID: 0x1002\n",
)

_RULE = "+---------------------------+---------------+----------------------------------------------------+"
_DOUBLE = "+===========================+===============+====================================================+"

# SEEN: vllm-ascend issue 1767 (Atlas A2, 910B2); processes from pull request 7107.
NPU_A2 = said(
    npu.INFO,
    "+------------------------------------------------------------------------------------------------+\n"
    "| npu-smi 24.1.0.3                 Version: 24.1.0.3                                             |\n"
    f"{_RULE}\n"
    "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
    "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n"
    f"{_DOUBLE}\n"
    "| 0     910B2               | OK            | 96.4        37                0    / 0             |\n"
    "| 0                         | 0000:C1:00.0  | 0           0    / 0          59891/ 65536         |\n"
    f"{_DOUBLE}\n"
    "| 1     910B2               | Alarm         | 88.7        37                0    / 0             |\n"
    "| 0                         | 0000:C2:00.0  | 0           0    / 0          3395 / 65536         |\n"
    f"{_DOUBLE}\n"
    "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
    f"{_DOUBLE}\n"
    "| 0       0                 | 669096        | VLLMWorker_TP            | 55124                   |\n"
    f"{_DOUBLE}\n"
    "| No running processes found in NPU 1                                                            |\n"
    f"{_DOUBLE}\n",
)

# SEEN: vllm-ascend issue 12980 (Atlas A3, npu-smi 26.0.rc2): two chips a card, a wider table and
# the process id inside the container.
NPU_A3 = said(
    npu.INFO,
    "| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |\n"
    "| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |\n"
    "| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |\n"
    f"{_DOUBLE}\n"
    "| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |\n"
    "| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |\n"
    "| 0     Ascend910           | OK            | -                    34                      0    / 0                |\n"
    "| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |\n"
    f"{_DOUBLE}\n"
    "| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |\n"
    f"{_DOUBLE}\n"
    "| 0       0                 | 632268        | python3.1          | 197                   | NA                      |\n"
    "| No running processes found in NPU 1                                                                              |\n",
)

# SEEN: vllm-ascend issue 2416 (Atlas 300I Duo): no HBM column.
NPU_310P = said(
    npu.INFO,
    "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |\n"
    "| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |\n"
    "| 2       310P3                 | OK              | NA           70                0     / 0             |\n"
    "| 0       0                     | 0000:01:00.0    | 0            1417 / 44216                            |\n"
    "| 2       310P3                 | OK              | NA           69                0     / 0             |\n"
    "| 1       1                     | 0000:01:00.0    | 0            1516 / 43757                            |\n",
)

# SEEN: vllm-ascend issue 2698, in a container.
NPU_REFUSED = said(
    npu.INFO,
    "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
    "dcmi module initialize failed. ret is -8005\n",
    "exit status 249: DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)",
)

# SEEN: the machine these tests were written on.
LSCPU = said(
    cpu.LSCPU,
    "Architecture:                            x86_64\n"
    "CPU op-mode(s):                          32-bit, 64-bit\n"
    "CPU(s):                                  2\n"
    "Vendor ID:                               AuthenticAMD\n"
    "Model name:                              AMD EPYC\n"
    "Flags:                                   fpu avx avx2 avx512f avx512_bf16 sse4_2\n",
)

# SEEN: torch_npu 2.13.0 on a machine without CANN.
LDD_TORCH_NPU = said(
    ("ldd", "/lib/python3/site-packages/torch_npu/lib/libtorch_npu.so"),
    "\tlinux-vdso.so.1 (0x00007f5aa0a69000)\n\tlibhccl.so => not found\n"
    "\tlibascendcl.so => not found\n\tlibtorch_cpu.so => not found\n\tlibc10.so => not found\n"
    "\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f5a9a720000)\n",
)
