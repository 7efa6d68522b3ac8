package wire_test

import (
	"strings"
	"testing"
	"time"

	"berth/wire"
)

func TestProgressValuesOfAStoredDocumentAreChecked(t *testing.T) {
	t.Parallel()
	const good = `{"started_at": "2026-01-31T12:00:00Z", "step": "2s", "series": [{"metric": "cpu", "limit": 9, "values": [1, 2]}],
		"progress": [{"name": "loss", "values": [0.5, null]}]}`
	m, err := wire.ParseMemberMetrics([]byte(good))
	if err != nil || len(m.Progress) != 1 || m.Progress[0].Values[0] != 0.5 {
		t.Fatalf("read %+v: %v", m, err)
	}
	if m.Series[0].Limit != nil {
		t.Error("an agent has set a limit")
	}
	late := m.Since(m.StartedAt.Add(2 * time.Second))
	if len(late.Progress[0].Values) != 1 || len(late.Series[0].Values) != 1 || len(m.Progress[0].Values) != 2 {
		t.Errorf("since the second step: %+v of %+v", late, m)
	}
	for _, change := range [][2]string{
		{`"loss"`, `"bad name"`}, {`"loss"`, `""`}, {`[0.5, null]`, `[0.5]`},
		{`{"name": "loss", "values": [0.5, null]}`,
			strings.TrimSuffix(strings.Repeat(`{"name": "loss", "values": [0.5, null]},`, wire.MaxProgressValues+1),
				",")},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if _, err := wire.ParseMemberMetrics([]byte(bad)); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
	alone := strings.Replace(good, `{"metric": "cpu", "limit": 9, "values": [1, 2]}`, ``, 1)
	if m, err := wire.ParseMemberMetrics([]byte(alone)); err != nil ||
		len(m.Since(m.StartedAt.Add(2 * time.Second)).Progress[0].Values) != 1 {
		t.Errorf("without series: %+v, %v", m, err)
	}
}
