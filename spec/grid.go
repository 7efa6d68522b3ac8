package spec

import (
	"encoding/json"
	"fmt"
	"strconv"

	"berth"
)

// maxGridNames is the largest number of lists in array.grid.
const maxGridNames = 64

// gridCount returns the number of combinations in a grid. It stops at the first product
// beyond MaxArray, so the result never overflows; any result above MaxArray is too large.
func gridCount(grid map[string][]string) int {
	n := 1
	for _, name := range sortedKeys(grid) {
		if n *= len(grid[name]); n > MaxArray || n == 0 {
			return n
		}
	}
	return n
}

// gridEntries returns the combinations of a grid in the order of the elements: the names
// are sorted, and the value of the last name changes fastest, as the innermost of nested
// loops. The product must be at most MaxArray.
func gridEntries(grid map[string][]string) []map[string]string {
	names := sortedKeys(grid)
	entries := make([]map[string]string, gridCount(grid))
	for i := range entries {
		vars, rest := make(map[string]string, len(names)), i
		for k := len(names) - 1; k >= 0; k-- {
			values := grid[names[k]]
			vars[names[k]], rest = values[rest%len(values)], rest/len(values)
		}
		entries[i] = vars
	}
	return entries
}

// expanded returns the array with its grid written out as Each. An array without a grid,
// with size or each as well, or with a grid that Validate refuses is returned unchanged.
//
// The stored spec has Each alone: a replica of a version without grids creates the same
// elements, and a retry finds the variables of an index in one place.
func (a Array) expanded() Array {
	if len(a.Grid) == 0 || a.Size != 0 || len(a.Each) > 0 || a.From != "" {
		return a
	}
	v := &validation{}
	if a.validateGrid(v); len(v.faults) > 0 {
		return a
	}
	a.Each, a.Grid = gridEntries(a.Grid), nil
	return a
}

// validateGrid checks a grid by itself: the number of lists, each list, and the product.
func (a Array) validateGrid(v *validation) {
	v.require(len(a.Grid) <= maxGridNames, "array.grid", "has "+strconv.Itoa(len(a.Grid))+" lists",
		fmt.Sprintf("1 to %d lists of values, such as {LR: [\"0.1\", \"0.01\"]}", maxGridNames))
	for _, name := range sortedKeys(a.Grid) {
		at := "array.grid." + name
		values := a.Grid[name]
		v.require(len(values) > 0, at, "has no values, so the grid has no elements", "a list of one or more values")
		before := len(v.faults)
		v.variable(at, name, "")
		seen := make(map[string]int, len(values))
		for i, value := range values {
			if len(v.faults) > before {
				break // the other values are likely to have the same fault
			}
			first, twice := seen[value]
			v.require(!twice, fmt.Sprintf("%s[%d]", at, i),
				fmt.Sprintf("%.60q is also value %d of the list", value, first), "each value once")
			seen[value] = i
			v.variable(fmt.Sprintf("%s[%d]", at, i), name, value)
		}
	}
	if len(v.faults) > 0 {
		return
	}
	n := gridCount(a.Grid)
	if n > MaxArray {
		v.require(false, "array.grid", fmt.Sprintf("the product of its %s has more than %d elements",
			plural(len(a.Grid), "list", "lists"), MaxArray), fmt.Sprintf("at most %d elements", MaxArray))
		return
	}
	size := gridBytes(a.Grid, n)
	v.require(size <= MaxSpecBytes, "array.grid",
		fmt.Sprintf("its %d elements take %s when written out as array.each", n, berth.BytesText(size)),
		"at most "+berth.BytesText(MaxSpecBytes)+"; use shorter names and values, or size with "+EnvArrayIndex)
}

// gridBytes returns the length of n combinations as the JSON of Each. Every value of a list
// occurs equally often, so no combination has to be built.
func gridBytes(grid map[string][]string, n int) int64 {
	sum := int64(n) * 2 // braces, and a comma after each but the last
	for name, values := range grid {
		for _, value := range values {
			// Cannot fail: both are texts. One pair has a colon and a comma, or the comma
			// after the combination.
			key, _ := json.Marshal(name)
			text, _ := json.Marshal(value)
			sum += int64(n/len(values)) * int64(len(key)+len(text)+2)
		}
	}
	return sum
}
