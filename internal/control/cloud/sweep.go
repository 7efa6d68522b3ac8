package cloud

import "time"

// Limits of a sweep.
const (
	// SweepAge is the least age of an instance that a sweep ends: younger ones may be under way.
	SweepAge = 10 * time.Minute
	// SweepMost limits the number of instances that one sweep ends, and SweepShare limits it in percent
	// of the listed instances; one is always allowed. Sweeps are a minute apart. More stray instances
	// point to a fault of Berth or of its database.
	SweepMost  = 5
	SweepShare = 10
)

// Sweep is the decision about the instances of a cluster that its cloud lists.
type Sweep struct {
	End   []Instance // no launch needs them: terminate
	Adopt []Instance // a restored database has lost their rows: give them new ones
	Odd   []Instance // of a settled launch from before a restore: an admin decides
	Left  int        // more to end, in later sweeps
}

// Judge decides about listed instances. The rows, by token, must have been read after the list, since
// the row of a launch is committed before its cloud can list the instance.
//
// No row is deleted. If none has the token of an instance, a restore has lost the row, also if the
// incarnation does not show a restore. The instance may have joined and may run work, so it is adopted
// at once, whatever its age, and never ended.
func Judge(list []Instance, rows map[string]Record, cluster string, now time.Time) Sweep {
	var s Sweep
	most := min(SweepMost, max(1, len(list)*SweepShare/100))
	for _, i := range list {
		if i.Cluster != cluster || i.State == Terminated {
			continue
		}
		r, known := rows[i.Token]
		switch {
		case !known:
			s.Adopt = append(s.Adopt, i)
		case known && !r.State.Settled() && (r.Instance == "" || r.Instance == i.ID):
			// In use.
		case now.Sub(i.Created) < SweepAge:
			// Its row may not know it yet.
		case known && r.Restored():
			// Its row was confirmed absent or withdrawn, in a database that may have lost its join.
			s.Odd = append(s.Odd, i)
		case len(s.End) == most:
			s.Left++
		default:
			s.End = append(s.End, i)
		}
	}
	return s
}
