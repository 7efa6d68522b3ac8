// Package saveinterval advises on the time between two checkpoints of a job.
//
// A job that saves often spends its time on saving; a job that saves seldom loses much work with a machine. The best
// interval follows from the time that a save takes away from the job's work, and from the mean time until the job loses
// a machine. The estimate is the one of Daly, which refines the first-order estimate of Young:
//
//   - J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9),
//     1974, doi:10.1145/361147.361115.
//   - J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
//     Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016.
//
// The cost of a save is the time in which the job writes its files. Berth stores them while the job works again. This
// latency hardly changes the best interval (N. H. Vaidya, IEEE Transactions on Computers 46(8), 1997,
// doi:10.1109/12.609281), but a shorter interval than the time to store one step leaves steps out, so it is a bound.
package saveinterval

import (
	"cmp"
	"math"
	"slices"
	"time"

	"berth"
	"berth/wire"
)

// Window is the time over which losses of machines count.
const Window = 30 * 24 * time.Hour

const (
	// priorService is the mean time between losses of a machine before any measurement, and the weight of this
	// assumption. It lies between the two clusters of A. Kokolis et al., "Revisiting Reliability in Large-Scale Machine
	// Learning Research Clusters", 2025, doi:10.1109/HPCA61900.2025.00096: a failure in 154 and in 427 node-days.
	priorService = 300 * 24 * time.Hour

	minService = 14 * 24 * time.Hour // less time in service says nothing about these machines
	minSaves   = 3                   // fewer measured saves say nothing about the job
	maxSaves   = 20                  // only the newest saves count, since the job may have changed
)

// Best returns the time of work between two saves that minimizes the expected run time of a job, by Daly's equation 37.
// save is the time of one save, and loss the mean time until the job loses a machine.
func Best(save, loss time.Duration) time.Duration {
	if save <= 0 || loss <= 0 {
		return 0
	}
	if save >= 2*loss {
		return loss
	}
	ratio := save.Seconds() / (2 * loss.Seconds())
	young := math.Sqrt(2 * save.Seconds() * loss.Seconds())
	return seconds(young*(1+math.Sqrt(ratio)/3+ratio/9) - save.Seconds())
}

// meanLoss returns the mean time until one of several machines is lost. It is the mean of a gamma distribution: the
// prior counts as one loss in priorService. If no machine was lost, this is a lower bound of the true time, as if the
// next machine were lost now.
func meanLoss(seen wire.MachineLosses) time.Duration {
	perMachine := (seen.Service + priorService) / time.Duration(1+seen.Lost)
	return perMachine / time.Duration(max(seen.Machines, 1))
}

// Advise returns the best interval for a job with these checkpoints, and the measurements that it follows from. The
// interval is from one checkpoint to the next, so it includes the time of a save.
func Advise(checkpoints []berth.Checkpoint, seen wire.MachineLosses) wire.CheckpointInterval {
	a := wire.CheckpointInterval{Machines: seen.Machines, LostMachines: seen.Lost,
		MachineDays: seen.Service.Hours() / 24}
	whole := slices.DeleteFunc(slices.Clone(checkpoints), func(c berth.Checkpoint) bool {
		return c.State == berth.CheckpointPartial
	})
	slices.SortFunc(whole, func(x, y berth.Checkpoint) int {
		return cmp.Or(cmp.Compare(y.Attempt, x.Attempt), y.CreatedAt.Compare(x.CreatedAt))
	})
	var saves, stores, gaps []float64
	for i, c := range whole[:min(len(whole), maxSaves)] {
		if c.Write != nil {
			saves = append(saves, *c.Write)
		}
		if c.Store != nil {
			stores = append(stores, *c.Store)
		}
		if i > 0 && c.Attempt == whole[0].Attempt {
			gaps = append(gaps, whole[i-1].CreatedAt.Sub(c.CreatedAt).Seconds())
		}
	}
	a.SaveSeconds, a.StoreSeconds, a.PresentSeconds = median(saves), median(stores), median(gaps)
	if seen.Machines == 0 || seen.Service < minService || len(saves) < minSaves {
		return a
	}
	loss := meanLoss(seen)
	a.LossSeconds = loss.Seconds()
	if best := Best(seconds(a.SaveSeconds), loss); best > 0 {
		a.AdvisedSeconds = max(best.Seconds()+a.SaveSeconds, a.StoreSeconds)
	}
	return a
}

// median returns the middle value, or 0 without values. It is safe against a single slow save.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
