package check

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"berth"
)

// ContainerEvent is one event of a container engine about a container of Berth.
type ContainerEvent struct {
	Cluster  string             `json:"cluster"`
	Machine  berth.MachineID    `json:"machine"`
	Job      berth.JobID        `json:"job"`
	Attempt  int                `json:"attempt"`
	Rank     int                `json:"rank"`
	Alloc    berth.AllocationID `json:"alloc"`
	ID       string             `json:"id"`     // id of the container, set by the engine
	Action   string             `json:"action"` // create, start, die, destroy
	ExitCode string             `json:"exit_code,omitempty"`
	At       time.Time          `json:"at"` // by the machine's clock
}

// ReadContainerEvents reads the output of `docker events --format '{{json .}}'`, one
// event per line. It skips events of other objects, and of containers of other programs.
// It also skips an incomplete last line, since the engine may still be writing it; any
// other line that is not an event is an error with the line's number.
func ReadContainerEvents(r io.Reader) ([]ContainerEvent, error) {
	var events []ContainerEvent
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		e, ours, err := parseContainerEvent(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ours {
			events = append(events, e)
		}
	}
}

// parseContainerEvent reads one line. ours is false for an empty line and for events that
// do not concern containers of Berth, which carry the label of their allocation.
func parseContainerEvent(line []byte) (e ContainerEvent, ours bool, err error) {
	var raw struct {
		Type   string
		Action string
		Actor  struct {
			ID         string
			Attributes map[string]string
		}
		TimeNano int64 `json:"timeNano"`
	}
	if len(line) == 1 {
		return e, false, nil
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return e, false, fmt.Errorf("no event of docker events: %w", err)
	}
	label := raw.Actor.Attributes
	if raw.Type != "container" || label[berth.LabelAlloc] == "" ||
		!slices.Contains([]string{"create", "start", "die", "destroy"}, raw.Action) {
		return e, false, nil
	}
	alloc, err1 := strconv.ParseInt(label[berth.LabelAlloc], 10, 64)
	rank, err2 := strconv.Atoi(label[berth.LabelRank])
	attempt, err3 := strconv.Atoi(label[berth.LabelAttempt])
	if err := errors.Join(err1, err2, err3); err != nil {
		return e, false, fmt.Errorf("labels of container %s: %w", raw.Actor.ID, err)
	}
	return ContainerEvent{
		Cluster: label[berth.LabelCluster], Machine: berth.MachineID(label[berth.LabelMachine]),
		Job:     berth.JobID(label[berth.LabelJob]),
		Attempt: attempt, Rank: rank, Alloc: berth.AllocationID(alloc), ID: raw.Actor.ID, Action: raw.Action,
		ExitCode: label["exitCode"], At: time.Unix(0, raw.TimeNano).UTC(),
	}, true, nil
}

// life is one container according to its engine. A zero time means that the event is
// missing from the files.
type life struct {
	ContainerEvent // its first event in the files
	Created        time.Time
	Starts         []time.Time
	Died           time.Time
	Destroyed      time.Time
}

// first is the time of the container's first event.
func (l life) first() time.Time { return l.At }

// ended is the time at which the engine reported the end; zero without such an event.
func (l life) ended() time.Time {
	if !l.Died.IsZero() {
		return l.Died
	}
	return l.Destroyed
}

// livesOf groups the events of a cluster's containers by job and container. The
// containers of a job are ordered by member, then by first event. Files may overlap: a
// repeated event counts once.
func livesOf(cluster string, events []ContainerEvent) map[berth.JobID][]life {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b ContainerEvent) int { return a.At.Compare(b.At) })
	byID := map[string]*life{}
	var order []*life
	for _, e := range events {
		if e.Cluster != cluster {
			continue
		}
		l := byID[e.ID]
		if l == nil {
			l = &life{ContainerEvent: e}
			byID[e.ID] = l
			order = append(order, l)
		}
		switch e.Action {
		case "create":
			l.Created = e.At
		case "start":
			if !slices.ContainsFunc(l.Starts, e.At.Equal) {
				l.Starts = append(l.Starts, e.At)
			}
		case "die":
			l.Died = e.At
		case "destroy":
			l.Destroyed = e.At
		}
	}
	lives := map[berth.JobID][]life{}
	for _, l := range order {
		lives[l.Job] = append(lives[l.Job], *l)
	}
	for _, list := range lives {
		slices.SortStableFunc(list, func(a, b life) int { return cmp.Compare(a.Rank, b.Rank) })
	}
	return lives
}

// ReadAccepted reads a client's list of its acknowledged submits: one JSON document a
// line.
func ReadAccepted(r io.Reader) ([]Accepted, error) {
	var list []Accepted
	for d := json.NewDecoder(r); ; {
		var a Accepted
		if err := d.Decode(&a); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
}
