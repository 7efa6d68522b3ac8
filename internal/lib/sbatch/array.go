package sbatch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/spec"
)

// indexes are the values of SLURM_ARRAY_TASK_ID of an array. Elements of Berth count from 0,
// so the preamble or a variable of each element sets the value of Slurm.
type indexes struct {
	list     []int // ascending, each once
	parallel int   // elements at once; 0: all
}

var errArray = fmt.Errorf("is not a set of indexes; allowed are numbers, ranges and steps, such as 0-15, 1-9:2 or "+
	"1,3,5, of at most %d elements, with %%COUNT to limit the elements at once", spec.MaxArray)

// parseArray parses a set of indexes: 0-15, 1,3,5, 0-20:5, each with %COUNT behind it.
func parseArray(text string) (x indexes, err error) {
	text, limit, limited := strings.Cut(text, "%")
	if limited {
		if x.parallel, err = number(limit); err != nil || x.parallel > spec.MaxArray {
			return indexes{}, errArray
		}
	}
	for part := range strings.SplitSeq(text, ",") {
		span, by, stepped := strings.Cut(part, ":")
		from, to, ranged := strings.Cut(span, "-")
		step := 1
		if stepped {
			if step, err = number(by); err != nil || !ranged {
				return indexes{}, errArray
			}
		}
		if !ranged {
			to = from
		}
		first, ok := index(from)
		last, okLast := index(to)
		if !ok || !okLast || last < first || len(x.list)+(last-first)/step >= 2*spec.MaxArray {
			return indexes{}, errArray
		}
		for i := first; i <= last; i += step {
			x.list = append(x.list, i)
		}
	}
	slices.Sort(x.list)
	if x.list = slices.Compact(x.list); len(x.list) > spec.MaxArray {
		return indexes{}, errArray
	}
	return x, nil
}

// index parses one index. Slurm allows numbers below four million.
func index(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 22)
	return int(n), err == nil
}

// step returns the distance between neighbours, or 0 if it differs.
func (x indexes) step() int {
	if len(x.list) == 1 {
		return 1
	}
	step := x.list[1] - x.list[0]
	for i := 2; i < len(x.list); i++ {
		if x.list[i]-x.list[i-1] != step {
			return 0
		}
	}
	return step
}

// array returns the array of the job file. Where the indexes have no common step, each
// element has its index of Slurm as a variable.
func (x indexes) array() *spec.Array {
	a := &spec.Array{Parallel: x.parallel}
	if x.step() > 0 {
		a.Size = len(x.list)
		return a
	}
	for _, i := range x.list {
		a.Each = append(a.Each, map[string]string{"SLURM_ARRAY_TASK_ID": strconv.Itoa(i)})
	}
	return a
}

// dependency parses a list of dependencies of one type: afterok:JOB:JOB,afterok:JOB.
func dependency(text string) (needs []string, when string, err error) {
	if strings.Contains(text, "?") {
		return nil, "", errors.New("a job of Berth waits for all its needs; an alternative (?) has no counterpart")
	}
	kind := ""
	for part := range strings.SplitSeq(text, ",") {
		this, jobs, _ := strings.Cut(part, ":")
		this = strings.ToLower(this)
		switch {
		case this != "afterok" && this != "afterany" && this != "afternotok":
			return nil, "", fmt.Errorf("%.40q has no counterpart; Berth has afterok, afterany and afternotok", this)
		case kind != "" && kind != this:
			return nil, "", fmt.Errorf("a job of Berth has one condition for all its needs, not both %s and %s; use a "+
				"pipeline with when", kind, this)
		}
		kind = this
		for job := range strings.SplitSeq(jobs, ":") {
			if job == "" || strings.ContainsAny(job, "+_ ") {
				return nil, "", fmt.Errorf("%.80q is not a job; allowed is a job of Berth by name or id, and "+
					"NAME[INDEX] for an element of an array", job)
			}
			if need := "job:" + job; !slices.Contains(needs, need) {
				needs = append(needs, need)
			}
		}
	}
	if kind == "afternotok" && len(needs) > 1 {
		return nil, "", errors.New("of several jobs, Slurm waits until all have failed, Berth until one has; name one")
	}
	conditions := map[string]string{"afterok": "", "afterany": spec.WhenAlways, "afternotok": spec.WhenFailure}
	return needs, conditions[kind], nil
}
