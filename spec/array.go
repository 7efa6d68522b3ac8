package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth"
)

// MaxArray is the largest number of elements of an array.
const MaxArray = 100_000

// maxArrayBytes bounds the sum of the specs in the rows of all elements of an array, or
// of all arrays of a pipeline. Each row has its own copy until the row is archived.
const maxArrayBytes = 1 << 30

// maxRanges is the largest number of ranges in a text for ParseIndexes.
const maxRanges = 1000

// EnvArrayIndex is the environment variable with the index of an array's element, from 0.
const EnvArrayIndex = "BERTH_ARRAY_INDEX"

// EnvArraySize is the environment variable with the number of elements of the array. In the
// retry of some elements it is the number of the original array, so that an element divides
// its data as it did before.
const EnvArraySize = "BERTH_ARRAY_SIZE"

// arrayVariables is the number of variables that Berth adds to the environment of an element.
const arrayVariables = 2

// Count returns the number of elements of the array.
func (a Array) Count() int {
	switch {
	case len(a.Each) > 0:
		return len(a.Each)
	case a.Size == 0 && len(a.Grid) > 0:
		return gridCount(a.Grid)
	}
	return a.Size
}

// elementBytes returns the length of an element's copy of the spec, as JSON.
func (s Job) elementBytes() int64 {
	s.Array, s.Notify = nil, nil // see db.Parents.Reconcile
	b, _ := json.Marshal(s)      // cannot fail: the spec was read from JSON
	return int64(len(b))
}

// arrayBytes returns the length of all elements' copies; 0 for a job that is not an array.
func (s Job) arrayBytes() int64 {
	if s.Array == nil {
		return 0
	}
	return int64(s.Array.Count()) * s.elementBytes()
}

// plural joins a number and its noun.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// validateArray checks the fields below array, and the space that its elements take.
// WithDefaults has replaced a valid grid by each, so a grid that is left has a fault.
func (s Job) validateArray(v *validation) {
	a := s.Array
	if a == nil {
		return
	}
	if a.From != "" {
		v.require(false, "array.from", "is only for steps of a pipeline",
			"size, each or grid; or submit a file with kind: pipeline")
		return
	}
	if len(a.Grid) > 0 {
		v.require(a.Size == 0, "array.size", fmt.Sprintf("is %d but array.grid is set", a.Size),
			"give only one of size, each and grid")
		v.require(len(a.Each) == 0, "array.each", "is set but array.grid is set too",
			"give only one of size, each and grid")
		a.validateGrid(v)
		return
	}
	v.require(len(a.Each) == 0 || a.Size == 0 || a.Size == len(a.Each),
		"array.size", fmt.Sprintf("is %d but array.each has %s", a.Size, plural(len(a.Each), "entry", "entries")),
		"give only one of size, each and grid")
	v.require(a.Count() >= 1 && a.Count() <= MaxArray, "array.size", fmt.Sprintf("%d is out of range", a.Count()),
		fmt.Sprintf("1 to %d; each has the same limit of entries", MaxArray))
	if n := s.arrayBytes(); n > maxArrayBytes && a.Count() <= MaxArray {
		v.require(false, "array.size", fmt.Sprintf("%d elements with %s each need %s",
			a.Count(), berth.BytesText(s.elementBytes()), berth.BytesText(n)),
			fmt.Sprintf("at most %s in total, which is %d elements of this size; move long texts to workdir or "+
				"inputs", berth.BytesText(maxArrayBytes), maxArrayBytes/s.elementBytes()))
	}
	v.require(a.Parallel >= 0 && a.Parallel <= MaxArray,
		"array.parallel", fmt.Sprintf("%d is out of range", a.Parallel),
		fmt.Sprintf("1 to %d; default: no limit", MaxArray))
	v.require(a.MaxFailures == nil || *a.MaxFailures >= 0, "array.max_failures", "is negative",
		"0 or more; default: no limit")
	for i, vars := range a.Each {
		before := len(v.faults)
		for _, k := range sortedKeys(vars) {
			v.variable(fmt.Sprintf("array.each[%d].%s", i, k), k, vars[k])
		}
		v.require(len(s.Env)+len(vars) <= maxEnv-arrayVariables, fmt.Sprintf("array.each[%d]", i), "too many variables",
			fmt.Sprintf("at most %d including env", maxEnv-arrayVariables))
		if len(v.faults) > before {
			break // the others are likely to have the same fault, and may be thousands
		}
	}
}

// IndexRange is a range of indexes from First to Last, both included.
type IndexRange struct{ First, Last int }

// ParseIndexes parses a set of indexes in the form 3-7,9. It returns ascending ranges
// with gaps between each other: overlapping and adjacent ranges are merged. Indexes lie
// between 0 and MaxArray-1, and the text has at most 1000 ranges; the error has
// berth.CodeInvalid otherwise.
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

// FormatIndexes renders ascending indexes in the form of ParseIndexes.
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
