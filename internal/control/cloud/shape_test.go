package cloud_test

import (
	"testing"

	"berth/internal/control/cloud"
)

func TestAMachineWithLessThanItsOfferIsNamed(t *testing.T) {
	t.Parallel()
	eight := cloud.Shape{CPUs: 8, MemoryMiB: 1000, GPUs: 2, GPUType: "H100"}
	for _, c := range []struct {
		name   string
		shape  cloud.Shape
		memory int64
		models []string
		want   string
	}{
		{"all of it", eight, 1000, []string{"H100", "H100"}, ""},
		{"more than it", eight, 2000, []string{"H100", "H100", "A100"}, ""},
		{"a part of the memory is reserved", eight, 750, []string{"H100", "h100"}, ""},
		{"slices", eight, 1000, []string{"H100-1g.10gb", "H100-1g.10gb", "H100-1g.10gb"}, ""},
		{"any model", cloud.Shape{GPUs: 1}, 0, []string{"L4"}, ""},
		{"no offer", cloud.Shape{}, 1, nil, ""},
		{"one GPU less", eight, 1000, []string{"H100"}, "has 1 of the 2 healthy H100 GPUs of its offer"},
		{"no GPU", cloud.Shape{GPUs: 1}, 1000, nil, "has 0 of the 1 healthy GPUs of its offer"},
		{"another model", eight, 1000, []string{"H1000", "A100", "H100", "A100"},
			"has 1 of the 2 H100 GPUs of its offer; its healthy GPUs are A100, H100, H1000"},
		{"less memory", eight, 749, []string{"H100", "H100"}, "has 749 MiB of memory, and its offer has 1000 MiB"},
	} {
		if got := c.shape.Lacks(c.memory, c.models); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
