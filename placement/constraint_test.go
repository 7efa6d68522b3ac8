package placement_test

import (
	"strings"
	"testing"

	"berth/placement"
)

func TestConstraintErrorsSayWhatIsWrongWhere(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`machine.labels.tier == "prod"`:                            "",
		`machine.labels.tier == "prod" && gpu.memory_mib >= 40960`: "",
		`machine.cpus >= 4`:                                        "",
		`has(machine.labels.tier)`:                                 "",
		`machine.labels.exists(k, k.startsWith("gpu"))`:            "",
		`machine.labels.exists(k, k.startsWith("gpu") && machine.labels[k].matches("^(a|b)+$"))`:   "",
		`machine.labels.exists(k, machine.labels.all(l, k + l != "x"))`:                            "at most 5000 are allowed: use fewer loops",
		`machine.labels.all(a, machine.labels.all(b, machine.labels.all(c, a + b + c != "x")))`:    "takes up to 1000000 steps",
		`["gpu", "fast", "ib"].all(p, machine.labels.exists(k, k.startsWith(p)))`:                  "",
		`machine.labels.filter(k, k.startsWith("taint.")).all(k, machine.labels[k] in ["x", "y"])`: "",
		`machine.lables.tier == "prod"`: "column 8: there is no field 'lables'",
		`maschine.id == "a"`:            "the variables are machine and gpu",
		`machine.cpus`:                  "write a condition",
		`machine.cpus >`:                "column 15",
		`gpu.model == 3`:                "no matching overload",
		`machine == "a"`:                "'(machine, string)'",
		`gpu`:                           "is of type gpu",
		``:                              "column 1",
	} {
		err := placement.CheckConstraint(expr)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", expr, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", expr, err, want)
		}
	}
}
