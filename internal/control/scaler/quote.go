package scaler

import (
	"berth"
	"berth/placement"
)

// Quote is an offer as a job sees it.
type Quote struct {
	Offer    Offer
	Machines int      // that the job needs; 0: none of them holds it, or it may not run there
	Refused  NoteCode // why the offer may not run the job now; "": it may
}

// Costs returns the expected cost of each job's run in the cloud, in US dollars, by the cheapest offer
// that is open to the job. A job that no offer may run is missing in cost, and has its reason in why.
func Costs(in Input) (cost map[berth.JobID]float64, why map[berth.JobID]NoteCode) {
	d := quoter(in, Needs{})
	cost, why = map[berth.JobID]float64{}, map[berth.JobID]NoteCode{}
	for _, j := range in.Jobs {
		list, reason := d.choices(j)
		if len(list) == 0 {
			why[j.ID] = reason
			continue
		}
		cost[j.ID] = list[0].cost * j.Run.Hours()
	}
	return cost, why
}

// Needs holds the numbers of machines that jobs need, by job class and machine type, and by pool for classes whose
// constraint may name the pool. Calls with the same known machines may share one.
type Needs map[string]int

// Quotes returns a quote of each offer for one job, in the order of the offers. Unlike Decide it plans the job on
// empty machines of the offer alone, and it changes nothing but needs. The pools of a tenant share needs.
func Quotes(in Input, j Job, needs Needs) []Quote {
	d := quoter(in, needs)
	list := make([]Quote, len(in.Offers))
	for i, o := range in.Offers {
		n, refused := d.judge(o, j)
		if refused == "" {
			refused = d.limit(n, o.Price*max(j.Run, leastReserved).Hours())
		}
		list[i] = Quote{Offer: o, Machines: n, Refused: refused}
	}
	return list
}

// quoter returns a decider without machines.
func quoter(in Input, needs Needs) *decider {
	return &decider{Input: in, world: placement.NewSnapshot(), needs: needs}
}
