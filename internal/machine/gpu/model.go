package gpu

import (
	"regexp"
	"strings"
)

// noise matches parts of product names other than the model: maker, brand, form
// factor, amount and kind of memory.
var noise = regexp.MustCompile(`(?i)^(mock|nvidia|tesla|geforce|quadro|graphics|device|gpu|generation|edition|` +
	`\d+gb?|sxm\d*|pcie|oam|nvl\d*|hbm\d*e?|gddr\d*x?|with|max-q|design)$`)

var migProfile = regexp.MustCompile(`\bMIG (\S+)$`)

// ShortModel is the name by which users ask for a model: H100 for "NVIDIA H100
// 80GB HBM3", A100 for "NVIDIA A100-SXM4-40GB", RTX4090 for "NVIDIA GeForce RTX
// 4090". A MIG slice keeps its profile (A100-1g.5gb), so that a job that asks
// for an A100 is not given a seventh of one.
func ShortModel(product string) string {
	name, profile := strings.TrimSpace(product), ""
	if m := migProfile.FindStringSubmatchIndex(name); m != nil {
		name, profile = name[:m[0]], "-"+name[m[2]:m[3]]
	}
	var kept []string
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' }) {
		if !noise.MatchString(word) {
			kept = append(kept, word)
		}
	}
	if len(kept) == 0 { // better a long name than none
		return strings.Join(strings.Fields(product), "-")
	}
	return strings.Join(kept, "") + profile
}
