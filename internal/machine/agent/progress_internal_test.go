package agent

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
	"berth/wire"
)

func TestProgressValuesAreTakenWithinTheirBounds(t *testing.T) {
	t.Parallel()
	w := &progressWatcher{sampler: &usageSampler{}}
	for _, c := range []struct {
		file    string
		changed bool
		want    map[string]float64
	}{
		{`{"step": 1}`, false, nil},
		{`{"values": {"loss": 2.5, "lr": 1e-4}}`, true, map[string]float64{"loss": 2.5, "lr": 1e-4}},
		{`{"values": {"lr": 1e-4, "loss": 2.5}}`, false, map[string]float64{"loss": 2.5, "lr": 1e-4}},
		{`{"values": {"loss": "low", "val/acc": 0.5, "bad name": 1, "": 2}}`, true, map[string]float64{"val/acc": 0.5}},
		{`{"values": [1]}`, false, map[string]float64{"val/acc": 0.5}},
		{`{"step": 2}`, false, map[string]float64{"val/acc": 0.5}},
	} {
		if changed := w.values([]byte(c.file)); changed != c.changed {
			t.Errorf("%s: changed is %v", c.file, changed)
		}
		var got map[string]float64
		if p := w.sampler.progress.Load(); p != nil {
			got = *p
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.file, diff)
		}
	}
	// A job that invents names all the time has only its first ones recorded.
	for i := range 100 {
		w.values(fmt.Appendf(nil, `{"values": {"name-%d": %d, "loss": %d}}`, i, i, i))
	}
	if n := len(w.named); n != wire.MaxProgressValues {
		t.Errorf("%d names are taken", n)
	}
	if got := *w.sampler.progress.Load(); !maps.Equal(got, map[string]float64{"loss": 99}) {
		t.Errorf("the last values are %v", got)
	}
	if spec.ValidMetricName(strings.Repeat("x", spec.MaxMetricName+1)) {
		t.Error("a longer name is valid")
	}
}
