package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth"
)

// MaxArray is how many elements an array may have.
const MaxArray = 100_000

// maxArrayBytes bounds the copies of the spec that all elements of an array, or of
// the arrays of a pipeline, store: each row has a copy until it is archived.
const maxArrayBytes = 1 << 30

// maxRanges is how many ranges a set of indexes may be written in.
const maxRanges = 1000

// EnvArrayIndex is the variable with the index of an array's element.
const EnvArrayIndex = "BERTH_ARRAY_INDEX"

// Count is how many elements the array has.
func (a Array) Count() int {
	if len(a.Each) > 0 {
		return len(a.Each)
	}
	return a.Size
}

// elementBytes is the length of an element's copy of the spec, as JSON.
func (s Job) elementBytes() int64 {
	s.Array, s.Notify = nil, nil // see db.Parents.Reconcile
	b, _ := json.Marshal(s)      // as it was read
	return int64(len(b))
}

// arrayBytes is the length of all elements' copies; 0 for a job that is not an array.
func (s Job) arrayBytes() int64 {
	if s.Array == nil {
		return 0
	}
	return int64(s.Array.Count()) * s.elementBytes()
}

func (s Job) validateArray(v *validation) {
	a := s.Array
	if a == nil {
		return
	}
	v.require(len(a.Each) == 0 || a.Size == 0 || a.Size == len(a.Each),
		"array.size", fmt.Sprintf("is %d, but each has %d entries", a.Size, len(a.Each)), "leave one of them out")
	v.require(a.Count() >= 1 && a.Count() <= MaxArray, "array.size", fmt.Sprintf("%d is out of range", a.Count()),
		fmt.Sprintf("1 to %d, or each: with as many entries", MaxArray))
	if n := s.arrayBytes(); n > maxArrayBytes && a.Count() <= MaxArray {
		v.require(false, "array.size", fmt.Sprintf("%d elements, each with its copy of a job of %s, come to %s",
			a.Count(), berth.BytesText(s.elementBytes()), berth.BytesText(n)),
			fmt.Sprintf("at most %s in all, so %d elements of this job; what is long in it can lie in workdir or "+
				"inputs", berth.BytesText(maxArrayBytes), maxArrayBytes/s.elementBytes()))
	}
	v.require(a.Parallel >= 0 && a.Parallel <= MaxArray,
		"array.parallel", fmt.Sprintf("%d is out of range", a.Parallel),
		fmt.Sprintf("1 to %d; leave it out for no limit", MaxArray))
	v.require(a.MaxFailures == nil || *a.MaxFailures >= 0, "array.max_failures", "is negative",
		"0 or more; leave it out for no limit")
	for i, vars := range a.Each {
		before := len(v.faults)
		for _, k := range sortedKeys(vars) {
			v.variable(fmt.Sprintf("array.each[%d].%s", i, k), k, vars[k])
		}
		v.require(len(s.Env)+len(vars) < maxEnv, fmt.Sprintf("array.each[%d]", i), "too many variables",
			fmt.Sprintf("at most %d together with env", maxEnv-1))
		if len(v.faults) > before {
			break // the others are likely to have the same fault, and may be thousands
		}
	}
}

// IndexRange is the indexes from First to Last, both included.
type IndexRange struct{ First, Last int }

// ParseIndexes reads a set of indexes written as 3-7,9 and returns it as ranges
// in order that do not touch.
func ParseIndexes(s string) ([]IndexRange, error) {
	var list []IndexRange
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || first < 0 || last < first || last >= MaxArray || len(list) == maxRanges {
			return nil, berth.Errorf(berth.CodeInvalid,
				"indexes %.40q: write numbers and ranges from 0 to %d, such as 3-7,9", s, MaxArray-1)
		}
		list = append(list, IndexRange{first, last})
	}
	slices.SortFunc(list, func(a, b IndexRange) int { return a.First - b.First })
	joined := list[:1]
	for _, r := range list[1:] {
		if end := &joined[len(joined)-1]; r.First <= end.Last+1 {
			end.Last = max(end.Last, r.Last)
		} else {
			joined = append(joined, r)
		}
	}
	return joined, nil
}

// FormatIndexes writes indexes, which are in order, as ParseIndexes reads them.
func FormatIndexes(indexes []int) string {
	var b strings.Builder
	for i := 0; i < len(indexes); {
		j := i
		for j+1 < len(indexes) && indexes[j+1] == indexes[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(indexes[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(indexes[j]))
		}
		i = j + 1
	}
	return b.String()
}
