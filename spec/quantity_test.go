package spec_test

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"berth/spec"
)

func TestMiBReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := spec.MiB(rapid.Int64Range(0, 1<<40).Draw(t, "mib"))
		got, err := spec.ParseMiB(m.String())
		if err != nil || got != m {
			t.Fatalf("%d -> %q -> %d, %v", m, m, got, err)
		}
	})
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]spec.MiB{
		`"4GiB"`: 4096, `"512MiB"`: 512, `1048576`: 1, `1`: 1, `"1.5GiB"`: 1536, `"16Gi"`: 16384, `"1GB"`: 954,
	} {
		var got spec.MiB
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{`"-1GiB"`, `"lots"`, `"NaN"`, `"1e30GiB"`, `""`, `"0x10"`, `true`, `"9EiB"`} {
		var got spec.MiB
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s: got %d, want an error", text, got)
		}
	}
}

func TestSharesOfAGPU(t *testing.T) {
	t.Parallel()
	var r spec.Resources
	if err := json.Unmarshal([]byte(`{"gpus": 0.25, "gpu_type": "H100"}`), &r); err != nil {
		t.Fatal(err)
	}
	if r.GPUs != 250 || !r.GPUs.IsShare() || r.GPUType[0] != "H100" {
		t.Errorf("got %+v", r)
	}
}
