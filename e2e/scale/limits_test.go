package scale_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/e2e/rig"
)

// limitsEvery is the pause between two readings of the limits: as long as Prometheus
// waits between two scrapes, since a scrape is a load itself.
const limitsEvery = 15 * time.Second

// limitFigures are the metrics of the first replica that show what holds starts back,
// with the name of each in a remark.
var limitFigures = []struct{ name, metric string }{
	{"calls to Temporal allowed", `berth_dependency_limit{dependency="temporal"}`},
	{"in flight", `berth_dependency_in_flight{dependency="temporal"}`},
	{"latency s", `berth_dependency_latency_seconds{dependency="temporal"}`},
	{"starts that wait for the limit", `berth_dependency_queued{class="start",dependency="temporal"}`},
	{"starts a second allowed", `berth_admission_rate{at="start"}`},
	{"unsettled", `berth_admission_unsettled`},
}

// watchLimits reads the limits of the first replica until the returned function is
// called, which describes the means.
func (c *cell) watchLimits() (stop func() string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	caller := rig.NewCaller(c.URL, c.Token, "")
	var done sync.WaitGroup
	sums, counts := make([]float64, len(limitFigures)), make([]int, len(limitFigures))
	done.Go(func() {
		defer caller.Close()
		for i := 1; rig.SleepUntil(ctx, time.Now().Add(limitsEvery)); i++ {
			a := caller.Call(ctx, http.MethodGet, "/metrics", nil, nil)
			if a.Good() {
				addLimits(string(a.Body), sums, counts)
			}
		}
	})
	return func() string {
		cancel()
		done.Wait()
		var parts []string
		for i, f := range limitFigures {
			if counts[i] > 0 {
				parts = append(parts, fmt.Sprintf("%s %.2f", f.name, sums[i]/float64(counts[i])))
			}
		}
		return strings.Join(parts, ", ") + " (means)"
	}
}

// addLimits adds the figures of one reading. An infinite rate binds nothing and is
// left out.
func addLimits(text string, sums []float64, counts []int) {
	for line := range strings.Lines(text) {
		for i, f := range limitFigures {
			rest, found := strings.CutPrefix(line, f.metric+" ")
			if !found {
				continue
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err == nil && v < 1e9 {
				sums[i] += v
				counts[i]++
			}
		}
	}
}
