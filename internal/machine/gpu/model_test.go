package gpu_test

import (
	"testing"

	"berth/internal/machine/gpu"
)

func TestShortModelIsWhatUsersAskFor(t *testing.T) {
	t.Parallel()
	for product, want := range map[string]string{
		"NVIDIA H100 80GB HBM3":                "H100",
		"NVIDIA H100 PCIe":                     "H100",
		"NVIDIA H100 NVL":                      "H100",
		"NVIDIA H200":                          "H200",
		"NVIDIA H20-3e":                        "H203e",
		"NVIDIA B200":                          "B200",
		"NVIDIA GH200 480GB":                   "GH200",
		"NVIDIA GH200 144G HBM3e":              "GH200",
		"NVIDIA A100-SXM4-40GB":                "A100",
		"NVIDIA A100 80GB PCIe":                "A100",
		"Mock NVIDIA A100-SXM4-40GB":           "A100",
		"A100-PCIE-40GB":                       "A100",
		"NVIDIA A10G":                          "A10G",
		"NVIDIA A10":                           "A10",
		"NVIDIA L40S":                          "L40S",
		"NVIDIA L4":                            "L4",
		"Tesla V100-SXM2-16GB":                 "V100",
		"Tesla V100-PCIE-32GB":                 "V100",
		"Tesla P100-PCIE-16GB":                 "P100",
		"Tesla T4":                             "T4",
		"Tesla K80":                            "K80",
		"NVIDIA GeForce RTX 4090":              "RTX4090",
		"GeForce GTX 1080 Ti":                  "GTX1080Ti",
		"NVIDIA RTX 6000 Ada Generation":       "RTX6000Ada",
		"NVIDIA RTX A6000":                     "RTXA6000",
		"Quadro RTX 8000":                      "RTX8000",
		"NVIDIA TITAN V":                       "TITANV",
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb":     "A100-1g.5gb",
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb+me": "H100-1g.10gb+me",
		"NVIDIA Graphics Device":               "NVIDIA-Graphics-Device",
		"":                                     "",
		"  NVIDIA  ":                           "NVIDIA",
		"Something else entirely, from 2031":   "Somethingelseentirely,from2031",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000BlackwellServer",
	} {
		if got := gpu.ShortModel(product); got != want {
			t.Errorf("%q becomes %q, want %q", product, got, want)
		}
	}
}
