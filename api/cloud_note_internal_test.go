package api

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

func TestCloudNotes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	soon, until := now.Add(4*time.Minute), time.Now().Add(time.Hour).UTC()
	launch := func(m berth.MachineID, state string) wire.Launch {
		return wire.Launch{Machine: m, State: state, Type: "big", Region: "eu-1", Price: 2.5, CreatedAt: now.Add(-40 * time.Second)}
	}
	unsent := launch("v2", "sent")
	unsent.ErrorKind = "unsent"
	note := func(n db.BurstNote, list ...wire.Launch) db.ShownNote {
		return db.ShownNote{BurstNote: n, Launches: list, Now: now}
	}
	for _, c := range []struct {
		note db.ShownNote
		code string // "": nothing is shown
		text string
	}{
		{note(db.BurstNote{Code: "launched"}, launch("v1", "running")), "provisioning",
			"provisioning: machine v1 (big in eu-1, $2.50/h) launched 40 s ago, boots"},
		{note(db.BurstNote{Code: "covered"}, launch("v1", "running"), launch("v2", "sent")), "provisioning",
			"provisioning: machine v2 (big in eu-1, $2.50/h) launched 40 s ago, waits for the answer of the cloud; 1 more"},
		{note(db.BurstNote{Code: "launched"}, unsent), "provisioning",
			"provisioning: machine v2 (big in eu-1, $2.50/h) launched 40 s ago, is not requested yet: no berthd could call the cloud"},
		{note(db.BurstNote{Code: "launched"}, launch("v1", "serving")), "", ""},
		{note(db.BurstNote{Code: "covered"}), "", ""},
		{note(db.BurstNote{Code: "waits", Start: &soon, Cost: 8}), "waits",
			"planned start on machines that exist in 4 min; the run would cost about $8.00 in the cloud"},
		{note(db.BurstNote{Code: "closed", Until: &until}), "closed", "the next try is after " + until.Format("15:04:05Z")},
		{note(db.BurstNote{Code: "budget"}), "budget", "used or reserved"},
		{note(db.BurstNote{Code: "of a newer version"}), "", ""},
	} {
		w := &wire.Waiting{Code: "no_room", Message: "no room"}
		withCloud(w, c.note)
		if c.code == "" {
			if w.Cloud != nil || w.Message != "no room" {
				t.Errorf("%+v is shown as %+v", c.note, w)
			}
			continue
		}
		if w.Cloud == nil || w.Cloud.Code != c.code || !strings.Contains(w.Message, c.text) {
			t.Errorf("%+v is shown as %+v", c.note, w)
		}
		e := wire.Explanation{Summary: "no room", Blockers: []wire.Blocker{{Code: "no_room", Message: "no room"}}}
		explainCloud(&e, c.note)
		if len(e.Blockers) != 2 || c.code == "provisioning" != (e.Summary == c.text) || e.Cloud == nil {
			t.Errorf("%+v is explained as %+v", c.note, e)
		}
	}
	w := &wire.Waiting{Code: "held", Message: "on hold"}
	if withCloud(w, note(db.BurstNote{Code: "max"})); w.Cloud != nil {
		t.Errorf("a held job has %+v", w.Cloud)
	}
}
