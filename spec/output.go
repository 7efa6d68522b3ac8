package spec

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// MaxOutputs is the largest number of outputs of a job.
const MaxOutputs = 64

// validateOutputs checks the names and paths of outputs. Folders of the kernel and of
// secrets cannot be outputs.
func (s Job) validateOutputs(v *validation) {
	v.require(len(s.Outputs) <= MaxOutputs, "outputs", "too many", "at most "+strconv.Itoa(MaxOutputs))
	var names []string
	for i, o := range s.Outputs {
		field := "outputs[" + strconv.Itoa(i) + "]"
		v.require(isName(o.Name), field+".name", strconv.Quote(o.Name)+" is not a valid name",
			"1 to 63 of a-z, 0-9 and '-', not at either end")
		v.require(!slices.Contains(names, o.Name), field+".name", "is used twice", "each once")
		names = append(names, o.Name)
		ok := path.IsAbs(o.Path) && path.Clean(o.Path) == o.Path && o.Path != "/" && len(o.Path) <= 1024 &&
			!strings.ContainsRune(o.Path, 0)
		for _, hidden := range []string{"/proc", "/sys", "/dev", "/run/secrets"} {
			ok = ok && o.Path != hidden && !strings.HasPrefix(o.Path, hidden+"/")
		}
		if o.When != "" {
			v.oneOf(field+".when", o.When, "success", OutputAlways)
		}
		v.require(ok, field+".path", strconv.Quote(o.Path)+" cannot be the path of an output",
			"a clean absolute path such as /out/model, not /, /proc, /sys, /dev or /run/secrets")
	}
}
