package day

// step is one command of a scene.
type step struct {
	typed string   // the command
	shows []string // regular expressions of answers; typed only while one of them has not been seen. None: always typed
	until string   // the command is repeated, and counted once, until this is on the screen
	stop  string   // Ctrl-C is pressed once this is on the screen
	shown []string // regular expressions, each on the screen at some time while the command runs, in this order
	keep  string   // name of the recording; empty: none
	extra bool     // not asked for by the scene: typed for its recording alone, and not counted
}

// scene is one question of the day.
type scene struct {
	name    string
	before  [][]string // commands of an operator, or of the day before: neither shown nor counted
	steps   []step
	answers []string // regular expressions, all of which must be seen
	never   string   // a regular expression that must not be seen
	most    int      // commands with the programs of this commit
}

// scenes returns the day, for programs with or without the commands that were added later.
func scenes(c *cluster) []scene {
	return []scene{
		hello(), train(), sweep(), pipeline(c), gang(), schedule(c), drained(c), pending(c), flood(c), bar(),
		interrupt(),
	}
}

func hello() scene {
	const output, end = `(?m)^hello from attempt 1$`, `hello .*succeeded`
	return scene{
		name: "hello", answers: []string{output, end}, most: 1,
		steps: []step{
			{typed: "berth submit hello.yaml --wait", keep: "hello"},
			{typed: "berth logs hello", shows: []string{output}},
		},
	}
}

func train() scene {
	const loss, model = `epoch 5 loss`, `\{"w": 2\.0\}`
	return scene{
		name: "train with code, inputs and outputs", answers: []string{loss, model}, most: 3,
		steps: []step{
			{typed: "berth submit train.yaml --wait", keep: "train"},
			{typed: "berth logs train", shows: []string{loss}},
			{typed: "berth outputs pull train"},
			{typed: "cat model/model.json"},
			{typed: "berth show train", keep: "show", extra: true},
		},
	}
}

// sweep asks for the element that failed, its variable and its error, and for an element that succeeded.
func sweep() scene {
	const element, variable, cause = `sweep\[2\]`, `LR[=:] ?"?10`, `the loss diverges`
	const other = `sweep\[0\].*succeeded`
	return scene{
		name: "sweep with one failure", answers: []string{element, variable, cause, other}, most: 2,
		steps: []step{
			{typed: "berth submit sweep.yaml --wait", keep: "sweep"},
			{typed: "berth list --parent sweep", shows: []string{other}, keep: "elements"},
			{typed: "berth logs 'sweep[2]'", shows: []string{cause}},
			{typed: "grep LR: sweep.yaml", shows: []string{variable}},
		},
	}
}

// pipeline asks for the cause of a failure, and for the result after its repair.
func pipeline(c *cluster) scene {
	const cause, result = `/data/numbers: No such file|cannot open /data/numbers|/data/numbers: not found`, `(?m)(^|\| )3$`
	again := "berth pipeline submit pipeline.yaml --wait"
	if c.takes("--resume", "pipeline", "submit") {
		again = "berth pipeline submit pipeline.yaml --resume nightly --wait"
	}
	submit := "berth pipeline submit pipeline.yaml --wait"
	return scene{
		name: "pipeline with one failure, and a repair", answers: []string{cause, result}, most: 3,
		steps: []step{
			{typed: submit, keep: "pipeline"},
			{typed: "berth pipeline show nightly", shows: []string{cause}},
			{typed: "berth logs nightly.train", shows: []string{cause}},
			{typed: "sed -i s:/data/numbers:/numbers/numbers: pipeline.yaml"},
			{typed: again, keep: "resume"},
			{typed: "berth logs nightly.train", shows: []string{result}},
		},
	}
}

// gang asks for the member that failed, and for its error.
func gang() scene {
	const member, cause = `(?i)(member|rank) 1`, `cannot read shard 1`
	return scene{
		name: "gang with a failing member", answers: []string{member, cause}, most: 1,
		steps: []step{
			{typed: "berth submit ring.yaml --wait", keep: "gang"},
			{typed: "berth show ring", shows: []string{member}},
			{typed: "berth events ring", shows: []string{member}},
			{typed: "berth logs ring --member 1", shows: []string{cause}},
		},
	}
}

// schedule asks for the next time, and for the log of the last job.
func schedule(c *cluster) scene {
	const next, output = `(?m)^next +\d`, `(?m)^hello from attempt 1$`
	last := "berth logs hello"
	if c.takes("apply", "schedule") {
		last = "berth logs tick"
	}
	return scene{
		name: "schedule", answers: []string{next, output}, most: 3,
		steps: []step{
			{typed: "berth schedule create hello.yaml --name tick --every 10s"},
			{typed: "berth schedule show tick", until: `succeeded`, keep: "schedule"},
			{typed: last},
		},
	}
}

// drained asks whether a machine may be switched off, and why it is drained.
func drained(c *cluster) scene {
	const safe, reason = `m2 .*drained|(?m)^(jobs|runs|running) +(-|none|0)`, `new disk`
	drain := "berth machine drain m2 --reason 'new disk'"
	if c.takes("--wait", "machine", "drain") {
		drain += " --wait"
	}
	return scene{
		name: "drained machine", answers: []string{safe, reason}, most: 2,
		before: [][]string{{"schedule", "delete", "tick"}},
		steps: []step{
			{typed: drain},
			{typed: "berth machines", keep: "machines"},
			{typed: "berth machine show m2", shows: []string{safe}},
		},
	}
}

// pending asks why each of four jobs waits: for room, behind another job, for a drained machine, after a
// failure.
func pending(c *cluster) scene {
	const (
		room   = `big.*no room: needs 2 CPUs|fewer than 2 CPUs free|no (ready )?machine has 2 CPUs`
		behind = `next.*behind 1 job|waiting jobs? comes? before`
		disk   = `pinned.*new disk`
		failed = `flaky.*backoff|not start before`
	)
	return scene{
		name: "four jobs that wait", answers: []string{room, behind, disk, failed}, most: 1,
		before: [][]string{
			{"submit", "filler.yaml"}, {"submit", "big.yaml"}, {"submit", "next.yaml"}, {"submit", "pinned.yaml"},
			{"submit", "flaky.yaml"},
		},
		steps: []step{
			{typed: "berth list --limit 6", until: `flaky +retrying`, keep: "waiting"},
			{typed: "berth explain big", keep: "explain", extra: true},
			{typed: "berth explain big", shows: []string{room}},
			{typed: "berth explain next", shows: []string{behind}},
			{typed: "berth explain pinned", shows: []string{disk}},
			{typed: "berth machines", shows: []string{disk}},
			{typed: "berth explain flaky", shows: []string{failed}},
		},
	}
}

// flood asks for one line among 10 MB, and whether all lines have arrived.
func flood(c *cluster) scene {
	const line, whole = `(?m)^ERROR: shard 7 is corrupt`, `(?m)^ *100001 +\d{8}$`
	grep := "berth logs flood | grep ERROR"
	if c.takes("--grep", "logs") {
		grep = "berth logs flood --grep ERROR"
	}
	return scene{
		name: "10 MB of logs", answers: []string{line, whole}, most: 4,
		before: [][]string{{"cancel", "filler", "big", "next", "pinned", "flaky"}, {"machine", "undrain", "m2"}},
		steps: []step{
			{typed: "berth submit flood.yaml"},
			{typed: "berth wait flood"},
			{typed: grep},
			{typed: "berth logs flood | wc -lc"},
		},
	}
}

// bar asks for a progress bar: how far it is while the program runs, and its end. It must not fill the screen.
func bar() scene {
	const done = `100%\|#{25}\| 100/100`
	return scene{
		name: "progress bar", answers: []string{done}, never: `(?s)50/100.*52/100`, most: 1,
		steps: []step{
			{
				typed: "berth submit bar.yaml --wait", keep: "bar",
				shown: []string{`\| [1-4]\d/100`, `\| [5-9]\d/100`},
			},
			{typed: "berth logs bar", shows: []string{done}},
		},
	}
}

// interrupt asks whether a job goes on after Ctrl-C in its log.
func interrupt() scene {
	const state = `count continues|count goes on|count +running`
	return scene{
		name: "Ctrl-C in logs -f", answers: []string{state}, most: 2,
		steps: []step{
			{typed: "berth submit count.yaml"},
			{typed: "berth logs -f count", stop: `(?m)^step 3$`, keep: "interrupt"},
			{typed: "berth list", shows: []string{state}},
		},
	}
}
