package api

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/wire"
)

// codeProvisioning is the code of a job for which machines boot.
const codeProvisioning = "provisioning"

// cloudTexts are the texts of notes without machines, each with a hint for the owner of the job or
// an operator.
var cloudTexts = map[string]struct{ text, hint string }{
	"waits": {"the wait costs less than a machine of a cloud",
		"wait; the policy of the tenant sets the price of a wait"},
	"no_policy": {"the tenant has no burst policy, so no machine of a cloud is launched for its jobs",
		"ask an operator for a burst policy"},
	"no_when": {"the burst policy names no wait that is worth a machine of a cloud, so none is launched",
		"ask an operator for when in the burst policy"},
	"paused": {"admission is paused, so no machine of a cloud is launched",
		"wait until an operator resumes admission"},
	"forbidden": {"the burst policy allows no offer of a cloud for it",
		"ask an operator for a wider burst policy"},
	"price": {"all offers of clouds that fit cost more than max_price_per_hour",
		"ask an operator for a higher max_price_per_hour"},
	"site": {"placement.site is on_prem, so no machine of a cloud is launched for it",
		"leave out placement.site to allow machines of clouds"},
	"residency": {"its inputs demand a residency in which no allowed offer of a cloud is",
		"ask an operator for offers in the regions of the residency"},
	"spot": {"placement.spot, or a long run without checkpoints, excludes the markets of all offers",
		"set placement.spot: prefer, or set checkpoint in the job file"},
	"job_price": {"all offers of clouds that fit cost more than placement.max_price_per_hour of the job",
		"raise placement.max_price_per_hour, or leave it out"},
	"no_fit": {"no allowed offer of a cloud has machines on which it fits",
		"request less, or ask an operator for larger offers"},
	"closed": {"the clouds refused such machines a short time ago, or could not be called",
		"wait; berth offers and berth pool show name the closed part of a cloud, and the end of the refusals"},
	"max": {"the tenant has as many machines of clouds as max_machines allows",
		"wait until one of them is free"},
	"growth": {"as many machines were launched lately as the burst policy allows",
		"wait; Berth launches by itself later"},
	"budget": {"the money of the burst policy for this period is used or reserved",
		"ask an operator for a higher limit"},
}

// stateTexts describe the progress of a launch, by its state.
var stateTexts = map[cloud.LaunchState]string{
	cloud.LaunchRequested: "is requested", cloud.LaunchSent: "waits for the answer of the cloud",
	cloud.LaunchUnresolved: "was not seen in the cloud yet", cloud.LaunchRunning: "boots",
}

// unsentText describes a launch for which no replica could call the cloud yet.
const unsentText = "is not requested yet: no berthd could call the cloud"

// cloudNote renders a note of the scaler; nil if it says nothing to users. A code that this version
// does not know is left out, since the note may be from a newer leader.
func cloudNote(n db.ShownNote) *wire.CloudNote {
	out := &wire.CloudNote{Code: n.Code, Until: n.Until, Start: n.Start, Cost: n.Cost}
	if n.Code == "launched" || n.Code == "covered" {
		texts := map[berth.MachineID]string{}
		// A state without a text is one in which the machine has joined or will not join.
		for _, l := range n.Launches {
			texts[l.Machine] = stateTexts[cloud.LaunchState(l.State)]
			if texts[l.Machine] == "" {
				continue
			}
			if l.State == string(cloud.LaunchSent) && l.ErrorKind == string(cloud.Unsent) {
				texts[l.Machine] = unsentText
			}
			out.Machines = append(out.Machines, wire.CloudMachine{Machine: l.Machine, State: l.State, Type: l.Type,
				Region: l.Region, Market: l.Market, Price: l.Price, LaunchedAt: l.CreatedAt.UTC()})
		}
		if len(out.Machines) == 0 {
			return nil // they have joined, and the job starts, or they have failed
		}
		out.Code, out.Message = codeProvisioning, "provisioning: "+provisioning(out.Machines, texts, n.Now)
		return out
	}
	texts, ok := cloudTexts[n.Code]
	if !ok {
		return nil
	}
	out.Message = texts.text
	switch {
	case n.Code == "closed" && n.Until != nil:
		out.Message += "; the next try is after " + backoffText(*n.Until)
	case n.Start != nil:
		out.Message += fmt.Sprintf("; planned start on machines that exist in %s", ageText(n.Start.Sub(n.Now)))
	}
	if n.Cost > 0 {
		out.Message += fmt.Sprintf("; the run would cost about $%.2f in the cloud", n.Cost)
	}
	return out
}

// provisioning describes machines that boot, with the text of the machine that is farthest from its join. Launches
// whose outcome is unknown come first.
func provisioning(list []wire.CloudMachine, texts map[berth.MachineID]string, now time.Time) string {
	order := []cloud.LaunchState{cloud.LaunchUnresolved, cloud.LaunchRequested, cloud.LaunchSent, cloud.LaunchRunning}
	at := func(m wire.CloudMachine) int { return slices.Index(order, cloud.LaunchState(m.State)) }
	last := slices.MinFunc(list, func(a, b wire.CloudMachine) int {
		return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a.Machine, b.Machine))
	})
	price := ""
	if last.Price > 0 {
		price = fmt.Sprintf(", $%.2f/h", last.Price)
	}
	text := fmt.Sprintf("machine %s (%s in %s%s) launched %s ago, %s", last.Machine, last.Type, last.Region, price,
		ageText(now.Sub(last.LaunchedAt)), texts[last.Machine])
	if len(list) > 1 {
		text += fmt.Sprintf("; %d more", len(list)-1)
	}
	return text
}

// ageText renders a time roughly: in seconds below two minutes, then in minutes, then in hours.
func ageText(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

// lacksRoom reports whether the reason of a waiting job is one that a machine of a cloud removes. A job
// that waits for a quota or a release would wait with a machine, too.
func lacksRoom(code string) bool {
	return slices.Contains([]string{"no_room", "unsatisfiable", "no_machines", "reserved", "behind", "overdue",
		"engine_silent", "maintenance"}, code)
}

// withCloud adds a note to the reason of a waiting job. Machines that boot replace the reason; all
// other notes are added to it, since the job may start on premises meanwhile.
func withCloud(w *wire.Waiting, n db.ShownNote) {
	note := cloudNote(n)
	if w == nil || note == nil || !lacksRoom(w.Code) {
		return
	}
	w.Cloud = note
	if note.Code == codeProvisioning {
		w.Code, w.Message = codeProvisioning, note.Message
		return
	}
	w.Message += "; " + note.Message
}

// explainCloud adds a note to the explanation of a waiting job: machines that boot come first.
func explainCloud(e *wire.Explanation, n db.ShownNote) {
	note := cloudNote(n)
	if note == nil || !slices.ContainsFunc(e.Blockers, func(b wire.Blocker) bool { return lacksRoom(b.Code) }) {
		return
	}
	e.Cloud = note
	if note.Code != codeProvisioning {
		e.Blockers = append(e.Blockers,
			wire.Blocker{Code: "cloud", Message: note.Message, Hint: cloudTexts[n.Code].hint})
		return
	}
	b := wire.Blocker{Code: codeProvisioning, Message: note.Message,
		Hint: "wait; the job starts once the machine has joined"}
	for _, m := range note.Machines {
		b.Machines = append(b.Machines, m.Machine)
	}
	e.Blockers = append([]wire.Blocker{b}, e.Blockers...)
	e.Summary = note.Message
}

// waitingIDs returns the ids of jobs that wait, without parents.
func waitingIDs(jobs []*wire.Job) (ids []berth.JobID) {
	for _, j := range jobs {
		if j.Status.Waiting() && j.Tally == nil {
			ids = append(ids, j.ID)
		}
	}
	return ids
}
