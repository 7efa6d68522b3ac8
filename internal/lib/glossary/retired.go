package glossary

// Retired is a set of words that one term has replaced.
type Retired struct {
	Words []string
	Use   string
	// Scope limits the search to the places where the word was a term of its own: most
	// retired words also have an ordinary meaning.
	Scope Scope
}

// Scope is the set of places in which a retired word counts.
type Scope int

// The scopes, from the widest to the narrowest.
const (
	Everywhere Scope = iota // in every identifier, and in documents
	InNames                 // in every identifier; documents use the word in its ordinary sense
	InTypes                 // in names of types and packages, where the name is the word itself
)

// RetiredWords lists the words, in the order of the document.
var RetiredWords = []Retired{
	{Words: []string{"earmark"}, Use: "nomination (as in Kubernetes)"},
	{Words: []string{"tend"}, Use: "reconcile"},
	{Words: []string{"outlook"}, Use: "forecast, explanation"},
	{Words: []string{"intake"}, Use: "admission"},
	{Words: []string{"worth"}, Use: "expected fragmentation cost", Scope: InNames},
	{Words: []string{"gpu_claims"}, Use: "`device_allocations`"},
	{Words: []string{"mem_mb", "disk_mb"}, Use: "`memory_mib`, `disk_mib`"},
	{Words: []string{"fenced work"}, Use: "`at_most_one` work"},
	{Words: []string{"alone"}, Use: "`execution`: `at_most_one`", Scope: InTypes},
	{Words: []string{"lure", "bait"}, Use: "preemption bound"},
	{Words: []string{"prey"}, Use: "preemption candidate"},
	{Words: []string{"herd"}, Use: "preemption index"},
	{Words: []string{"smell"}, Use: "refresh (of an entry of the preemption index)"},
	{Words: []string{"chase", "hunt"}, Use: "search (for victims)", Scope: InNames},
	{Words: []string{"vow"}, Use: "reserved start"},
	{Words: []string{"purse"}, Use: "headroom"},
	{Words: []string{"bequeath"}, Use: "release"},
	{Words: []string{"leavings"}, Use: "released capacity"},
	{Words: []string{"haggle", "bargain"}, Use: "choose"},
	{Words: []string{"muster"}, Use: "group"},
	{Words: []string{"plant"}, Use: "insert", Scope: InNames},
	{Words: []string{"stint"}, Use: "tenure"},
	{Words: []string{"seat", "spots"}, Use: "place", Scope: InNames},
	{Words: []string{"wears"}, Use: "has (labels)", Scope: InNames},
	{Words: []string{"sick"}, Use: "unhealthy", Scope: InNames},
	{Words: []string{"teller"}, Use: "`tracedStore`"},
	{Words: []string{"keeper"}, Use: "`checkpointUploader`", Scope: InTypes},
	{Words: []string{"meter"}, Use: "`usageSampler`", Scope: InTypes},
	{Words: []string{"lookout"}, Use: "`progressWatcher`"},
	{Words: []string{"fate"}, Use: "`stopPlan`", Scope: InNames},
	{Words: []string{"tidier"}, Use: "`objectGC`"},
	{Words: []string{"marks"}, Use: "`machineBlocks`", Scope: InTypes},
	{Words: []string{"clocks"}, Use: "`temporalSchedules`", Scope: InTypes},
	{Words: []string{"rows"}, Use: "`convert`", Scope: InTypes},
	{Words: []string{"runs"}, Use: "`runtimes`", Scope: InTypes},
	{Words: []string{"source"}, Use: "`fetch`", Scope: InTypes},
	{Words: []string{"vault"}, Use: "`sealer`", Scope: InTypes},
	{Words: []string{"gauge"}, Use: "`cgroupstats`", Scope: InTypes},
	{Words: []string{"series"}, Use: "`timeseries`", Scope: InTypes},
	{Words: []string{"graph"}, Use: "`svgplot`", Scope: InTypes},
}

// RetiredInSQL lists names of tables and columns, and values, that statements of this
// program no longer use. The schema keeps them for the version before. Most have an
// ordinary meaning elsewhere.
var RetiredInSQL = []Retired{
	{Words: []string{"earmarks", "earmark_log"}, Use: "`nominations`, `nomination_log`"},
	{Words: []string{"gpu_claims"}, Use: "`device_allocations`"},
	{Words: []string{"mode"}, Use: "`execution`"},
	{Words: []string{"fenced", "exclusive"}, Use: "`at_least_once`, `at_most_one`"},
}
