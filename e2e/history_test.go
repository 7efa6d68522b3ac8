package e2e_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/temporalproto"

	"berth"
	"berth/internal/lib/buildinfo"
	"berth/internal/lib/golden"
)

// history returns Temporal's history of the job's workflow.
func (s *stack) history(t *testing.T, id berth.JobID) *historypb.History {
	t.Helper()
	return s.historyOf(t, berth.JobWorkflowID(id))
}

// historyOf reads a history as often as the server does not answer.
func (s *stack) historyOf(t *testing.T, workflow string) *historypb.History {
	t.Helper()
	var h *historypb.History
	until(t, "the history of workflow "+workflow+" is read", func() bool {
		h = &historypb.History{}
		events := s.temporal.GetWorkflowHistory(t.Context(), workflow, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			e, err := events.Next()
			if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
				t.Fatal(err)
			}
			if err != nil {
				return false
			}
			h.Events = append(h.Events, e)
		}
		return true
	})
	return h
}

// kinds shows a history as the types of its events.
func kinds(h *historypb.History) []string {
	var list []string
	for _, e := range h.GetEvents() {
		list = append(list, e.GetEventType().String())
	}
	return list
}

// steps are the activities of a history in order: local ones by their names,
// remote ones with their queue.
func steps(h *historypb.History) []string {
	var list []string
	for _, e := range h.GetEvents() {
		switch {
		case e.GetMarkerRecordedEventAttributes() != nil:
			var name struct{ ActivityType string }
			data := e.GetMarkerRecordedEventAttributes().GetDetails()["data"].GetPayloads()
			if len(data) == 1 && json.Unmarshal(data[0].GetData(), &name) == nil {
				list = append(list, name.ActivityType)
			}
		case e.GetActivityTaskScheduledEventAttributes() != nil:
			a := e.GetActivityTaskScheduledEventAttributes()
			list = append(list, a.GetActivityType().GetName()+" on "+a.GetTaskQueue().GetName())
		}
	}
	return list
}

// checkBuild fails the test unless the history names the version of the program that completed its tasks.
func checkBuild(t *testing.T, h *historypb.History) {
	t.Helper()
	tasks := 0
	for _, e := range h.GetEvents() {
		a := e.GetWorkflowTaskCompletedEventAttributes()
		if a == nil {
			continue
		}
		tasks++
		//lint:ignore SA1019 workers here have no versions in Temporal's sense, and only these fields name their builds
		if build := cmp.Or(a.GetWorkerVersion().GetBuildId(), a.GetBinaryChecksum()); build != buildinfo.Version() {
			t.Errorf("task %d was completed by build %q, not by %q", e.GetEventId(), build, buildinfo.Version())
		}
	}
	if tasks == 0 {
		t.Error("the history has no task that was completed")
	}
}

// record keeps a history under a name, with -update.
func record(t *testing.T, name string, h *historypb.History) {
	t.Helper()
	if !golden.Updating() {
		return
	}
	raw, err := temporalproto.CustomJSONMarshalOptions{}.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	anonymous(doc)
	raw, err = json.MarshalIndent(doc, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("..", "workflows", "testdata", "histories", name+".json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(raw, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// anonymous removes which processes on which host took part.
func anonymous(v any) {
	switch v := v.(type) {
	case map[string]any:
		if v["kind"] == "TASK_QUEUE_KIND_STICKY" {
			v["name"] = "sticky" // else it names the host
		}
		for k := range v {
			if k == "identity" {
				v[k] = "test"
				continue
			}
			anonymous(v[k])
		}
	case []any:
		for _, x := range v {
			anonymous(x)
		}
	}
}
