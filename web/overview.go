package web

import (
	"context"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// overviewView is the data of the first page.
type overviewView struct {
	Now      time.Time
	Mine     []tile
	All      []tile
	AllTitle string
	Reasons  []reasonCount
	Waiting  int
	GPUs     gpuTotals
	Unready  []wire.Machine
	Recent   []jobRow
	None     string
	Problems []string // parts that could not be read
}

// tile is one figure, with a link to the list that it counts. Class is its color; a figure of 0 has the
// class off.
type tile struct {
	Title, Text, Address, Class string
}

// reasonCount is the number of waiting jobs with one reason. Only the jobs that were read are counted.
type reasonCount struct {
	Code    string
	Jobs    int
	Example string
	Share   int // percent of the counted jobs
}

// gpuTotals sums the GPUs of all machines, in devices. Reserved devices belong to jobs; Busy is the sum
// of the measured use, "" without a measurement.
type gpuTotals struct {
	Total, Reserved, Free, Ill, Busy string
	Machines                         int
	Parts                            []part
}

// part is a stretch of a bar, in percent from its left end. Widths are whole percents, rounded down, so
// their sum may be below 100.
type part struct {
	Class, Title string
	At, Width    int
}

// queueRead is the number of waiting jobs from which the reasons are counted.
const queueRead = 1000

// overviewPage shows the reader's own jobs first, then the cluster. It makes eleven calls of the API,
// each with the rights of the reader.
func (s *Site) overviewPage(ctx context.Context, v *visit) (result, error) {
	view := overviewView{Now: v.page.Now, AllTitle: "Tenant " + string(v.page.Reader.Tenant)}
	if v.page.Reader.Operates() {
		view.AllTitle = "All tenants"
	}
	var err error
	if view.Mine, err = jobTiles(ctx, v, "owner:me "); err != nil {
		return result{}, err
	}
	if view.All, err = jobTiles(ctx, v, ""); err != nil {
		return result{}, err
	}
	recent, err := v.api.Jobs(ctx, client.JobsQuery{Limit: 12})
	if err != nil {
		return result{}, err
	}
	columns, _ := chosenColumns("owner,submitted,duration,reason", false)
	for _, j := range recent.Items {
		view.Recent = append(view.Recent, rowOf(j, columns, v.page.Now))
	}
	if len(view.Recent) == 0 {
		view.None = whyNoJobs(jobsView{}, v.page.Reader)
	}
	// The reasons come from a reading of the queue, which may be late: the page is shown without.
	if queue, err := v.api.Queue(ctx, client.QueueQuery{Limit: queueRead}); err == nil {
		view.Waiting, view.Reasons = queue.Total, countReasons(queue.Items)
	} else if berth.CodeOf(err) == berth.CodeUnavailable {
		view.Problems = append(view.Problems, sentence(messageOf(err)))
	} else {
		return result{}, err
	}
	machines, err := v.api.Machines(ctx)
	if err != nil {
		return result{}, err
	}
	view.GPUs = sumGPUs(machines.Items)
	for _, m := range machines.Items {
		if m.State != berth.MachineReady || m.EngineSilentSince != nil {
			view.Unready = append(view.Unready, m)
		}
	}
	return result{template: "overview", title: "Overview", data: view}, nil
}

// jobTiles counts jobs by status. of narrows the search, such as to the reader's own. The API counts at
// most 1,001 jobs, so a larger number is shown as more than 1,000.
func jobTiles(ctx context.Context, v *visit, of string) ([]tile, error) {
	tiles := []tile{
		{Title: "Running", Address: "status:active", Class: "run"},
		{Title: "Waiting", Address: "status:waiting", Class: "wait"},
		{Title: "Failed, 24 h", Address: "status:failed since:24h", Class: "bad"},
		{Title: "Succeeded, 24 h", Address: "status:succeeded since:24h", Class: "good"},
	}
	for i := range tiles {
		search := of + tiles[i].Address
		q, err := parseSearch(search, v.page.Reader.Actor(), v.page.Now)
		if err != nil {
			return nil, err
		}
		q.Limit, q.Count = 1, true
		page, err := v.api.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		tiles[i].Address, tiles[i].Text = searchAddress(search), "0"
		if n := page.Total; n != nil && *n > 1000 {
			tiles[i].Text = "> " + count(1000)
		} else if n != nil {
			tiles[i].Text = count(*n)
		}
		if tiles[i].Text == "0" {
			tiles[i].Class = "off"
		}
	}
	return tiles, nil
}

// countReasons groups waiting jobs by the code of their reason, the most frequent first. The example is
// the text of the first such job.
func countReasons(jobs []wire.QueuedJob) (counts []reasonCount) {
	for _, j := range jobs {
		code, text := "unknown", ""
		if j.Waiting != nil {
			code, text = j.Waiting.Code, j.Waiting.Message
		}
		i := slices.IndexFunc(counts, func(c reasonCount) bool { return c.Code == code })
		if i < 0 {
			i = len(counts)
			counts = append(counts, reasonCount{Code: code, Example: text})
		}
		counts[i].Jobs++
	}
	slices.SortStableFunc(counts, func(a, b reasonCount) int {
		if a.Jobs != b.Jobs {
			return b.Jobs - a.Jobs
		}
		return strings.Compare(a.Code, b.Code)
	})
	for i := range counts {
		counts[i].Share = percent(int64(counts[i].Jobs), int64(len(jobs)))
	}
	return counts
}

// sumGPUs adds up the GPUs of machines. A GPU of a machine that takes no work is ill here, unless a job
// still holds it. Sums are in thousandths of a device, since jobs may share a device. Reserved, ill and
// free devices add up to the total.
func sumGPUs(machines []wire.Machine) gpuTotals {
	var total, reserved, ill int64
	var busy float64
	measured := false
	for _, m := range machines {
		for _, g := range m.GPUs {
			total += 1000
			reserved += min(1000, g.UsedMilli)
			if !g.Healthy || m.State != berth.MachineReady {
				ill += 1000 - min(1000, g.UsedMilli)
			}
			if b := busyOf(m, g.UUID); b != nil {
				busy, measured = busy+*b, true
			}
		}
	}
	free := max(0, total-reserved-ill)
	sum := gpuTotals{Total: gpus(total), Reserved: gpus(reserved), Free: gpus(free), Ill: gpus(ill),
		Machines: len(machines)}
	if measured {
		sum.Busy = number(busy)
	}
	at := 0
	for _, p := range []struct {
		class, title string
		milli        int64
	}{{"run", "reserved", reserved}, {"bad", "unhealthy or out of service", ill}, {"none", "free", free}} {
		if width := percent(p.milli, total); width > 0 {
			sum.Parts = append(sum.Parts, part{p.class, gpus(p.milli) + " " + p.title, at, width})
			at += width
		}
	}
	return sum
}

// busyOf is the measured share of time in which a GPU was busy; nil: not known. The share is from 0 to
// 1.
func busyOf(m wire.Machine, uuid string) *float64 {
	if m.Measured == nil {
		return nil
	}
	for _, g := range m.Measured.GPUs {
		if g.UUID == uuid {
			return g.Busy
		}
	}
	return nil
}
