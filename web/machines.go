package web

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// machinesView is the data of the list and map of machines.
type machinesView struct {
	Now    time.Time
	GPUs   gpuTotals
	Groups []machineGroup
	By     string
	Ways   []filter
	Rows   []wire.Machine
	Total  int
	More   string // address with all rows of the table; "": all are shown
	None   string
	Pool   string
}

// machineGroup is a part of the map: the machines with one pool, site, region or rack.
type machineGroup struct {
	Name     string
	Machines int
	Map      template.HTML
}

// machinesShown is the number of machines in the table without a choice.
const machinesShown = 100

// groupings are the ways to group the map.
var groupings = []struct {
	key  string
	name func(m wire.Machine) string
}{
	{"pool", func(m wire.Machine) string { return m.Pool }}, {"site", func(m wire.Machine) string { return m.Site }},
	{"region", func(m wire.Machine) string { return m.Region }},
	{"rack", func(m wire.Machine) string { return m.Labels["rack"] }},
}

// machinesPage shows the map of GPUs and the list of machines. It reads all machines of the pool, which
// the map and the sums need. Only the table is cut.
func machinesPage(ctx context.Context, v *visit) (result, error) {
	view := machinesView{Now: v.page.Now, Pool: v.query("pool"), By: "pool"}
	machines, err := v.api.FindMachines(ctx, client.MachineQuery{Pool: view.Pool})
	if err != nil {
		return result{}, err
	}
	by := groupings[0]
	for _, g := range groupings {
		if g.key == v.query("by") {
			by, view.By = g, g.key
		}
	}
	for _, g := range groupings {
		view.Ways = append(view.Ways, filter{g.key, v.link("by", g.key), g.key == by.key})
	}
	slices.SortStableFunc(machines.Items, func(a, b wire.Machine) int { return cmp.Compare(a.ID, b.ID) })
	view.GPUs, view.Total = sumGPUs(machines.Items), len(machines.Items)
	groups := map[string][]wire.Machine{}
	for _, m := range machines.Items {
		groups[by.name(m)] = append(groups[by.name(m)], m)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		view.Groups = append(view.Groups, machineGroup{name, len(groups[name]), machineMap(groups[name])})
	}
	view.Rows = machines.Items
	if len(view.Rows) > machinesShown && v.query("all") == "" {
		view.Rows, view.More = view.Rows[:machinesShown], v.link("all", "1")
	}
	if view.Total == 0 {
		view.None = "No machine has joined."
	}
	return result{template: "machines", title: "Machines", data: view}, nil
}

// Sizes of the map in the units of its picture.
const (
	mapCell  = 13
	mapGap   = 3
	mapLabel = 120
	mapRow   = 19
	mapWidth = 300 // of a column, at least
	mapTotal = 1200
)

// machineMap draws machines as rows of GPU cells, in columns. The color is the reservation, a cross an
// ill device, hatches a reserved device that is idle. A machine has at most 16 cells, so that one large
// machine does not widen all columns.
func machineMap(machines []wire.Machine) template.HTML {
	most := 1
	for _, m := range machines {
		most = max(most, min(16, len(m.GPUs)))
	}
	width := max(mapWidth, mapLabel+most*(mapCell+mapGap)+20)
	columns := max(1, mapTotal/width)
	// Rounded up: the machines fill one column after the other.
	rows := (len(machines) + columns - 1) / columns
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s by their GPUs">`,
		min(columns, len(machines))*width, rows*mapRow+2, min(columns, len(machines))*width, rows*mapRow+2,
		plural(len(machines), "machine"))
	for i, m := range machines {
		drawMachine(&b, m, i/rows*width, i%rows*mapRow)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// drawMachine draws one row of the map, as a link to its machine.
func drawMachine(b *strings.Builder, m wire.Machine, x, y int) {
	mark := machineMark(m.State)
	name := template.HTMLEscapeString(clip(15, string(m.ID)))
	fmt.Fprintf(b, `<a href="/machines/%s"><title>%s: %s, %s of %s GPUs reserved</title>`,
		template.HTMLEscapeString(url.PathEscape(string(m.ID))), template.HTMLEscapeString(clip(60, string(m.ID))),
		m.State, gpus(m.Used.GPUMilli), gpus(m.Capacity.GPUMilli))
	fmt.Fprintf(b, `<text x="%d" y="%d">%s %s</text>`, x, y+13, mark.Shape, name)
	// One path a class, since an element for each GPU makes the picture of a large cluster twice as long.
	var order []string
	paths := map[string]string{}
	add := func(class, format string, args ...any) {
		if paths[class] == "" {
			order = append(order, class)
		}
		paths[class] += fmt.Sprintf(format, args...)
	}
	cells := m.GPUs[:min(16, len(m.GPUs))]
	for i, g := range cells {
		add("f-"+gpuClass(m, g), "M%d %dh%dv%dh-%dz", x+mapLabel+i*(mapCell+mapGap), y+2, mapCell, mapCell, mapCell)
	}
	for i, g := range cells { // the marks lie on the cells
		cx, busy := x+mapLabel+i*(mapCell+mapGap), busyOf(m, g.UUID)
		switch {
		case !g.Healthy:
			const side = mapCell - 4
			add("tick", "M%d %dl%d %dm0 -%dl-%d %d", cx+2, y+4, side, side, side, side, side)
		// Below 5 % a reserved device counts as idle. A device without a measurement gets no mark.
		case g.UsedMilli > 0 && busy != nil && *busy < 0.05:
			add("hatch", "M%d %dl%d -%dm0 5l-5 5", cx+1, y+1+mapCell, mapCell-1, mapCell-1)
		}
	}
	for _, class := range order {
		fmt.Fprintf(b, `<path class="%s" d="%s"/>`, class, paths[class])
	}
	if len(m.GPUs) == 0 {
		share := percent(m.Used.CPUMilli, m.Capacity.CPUMilli)
		drawCell(b, "none", x+mapLabel, y+4, 100, mapCell-4)
		drawCell(b, "run", x+mapLabel, y+4, share, mapCell-4)
	}
	b.WriteString("</a>")
}

// drawCell draws a filled rectangle.
func drawCell(b *strings.Builder, class string, x, y, width, height int) {
	fmt.Fprintf(b, `<rect class="f-%s" x="%d" y="%d" width="%d" height="%d" rx="2"/>`, class, x, y, width, height)
}

// gpuClass is the color of a GPU's cell. An unhealthy device stays visible while a job holds it.
func gpuClass(m wire.Machine, g wire.MachineGPU) string {
	switch {
	case !g.Healthy:
		return "bad"
	case g.UsedMilli >= 1000:
		return "run"
	case g.UsedMilli > 0:
		return "prep"
	case m.State != berth.MachineReady:
		return "off"
	}
	return "none"
}

// machineView is the data of the page of a machine.
type machineView struct {
	wire.Machine
	Now     time.Time
	Uses    []useBar
	GPURows []gpuRow
	Events  []wire.MachineEvent
	Drain   bool // the reader may drain it
	Undrain bool
	Approve bool
	Labels  []string
}

// useBar is one resource of a machine. Used is the reserved part; Measured is "" for a resource that
// the agent has not measured.
type useBar struct {
	Name, Used, Total, Measured string
	Share                       int
}

// gpuRow is a GPU of a machine with its last measurement.
type gpuRow struct {
	wire.MachineGPU
	Busy string
}

// eventsOfMachine is the number of the last events that a machine's page shows.
const eventsOfMachine = 50

// machinePage shows one machine: its GPUs, the jobs on it, and its history.
func machinePage(ctx context.Context, v *visit) (result, error) {
	id := berth.MachineID(v.r.PathValue("id"))
	m, err := v.api.Machine(ctx, id)
	if err != nil {
		return result{}, err
	}
	events, err := v.api.MachineEvents(ctx, id, 0)
	if err != nil {
		return result{}, err
	}
	slices.Reverse(events.Items)
	view := machineView{Machine: m, Now: v.page.Now, Events: events.Items[:min(len(events.Items), eventsOfMachine)],
		Uses: usesOf(m)}
	// The API decides about rights. The page only leaves out buttons that the API would refuse.
	draining := m.State == berth.MachineDraining || m.State == wire.MachineDrained
	view.Undrain = v.page.Reader.Operates() && draining
	view.Approve = v.page.Reader.Operates() && m.State == wire.MachinePending
	view.Drain = v.page.Reader.Operates() && !draining && m.State != berth.MachineRetired
	for _, g := range m.GPUs {
		row := gpuRow{MachineGPU: g, Busy: "–"}
		if busy := busyOf(m, g.UUID); busy != nil {
			row.Busy = fmt.Sprintf("%d %%", int(*busy*100+0.5))
		}
		view.GPURows = append(view.GPURows, row)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
		view.Labels = append(view.Labels, clip(60, k+"="+m.Labels[k]))
	}
	return result{template: "machine", title: string(m.ID), data: view}, nil
}

// devices counts devices by model, for the middle of a list: "2 A100, 1 H100, ".
func devices(list []wire.EquipmentGPU) string {
	count := map[string]int{}
	for _, g := range list {
		count[g.Model]++
	}
	var text strings.Builder
	for _, model := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(&text, "%d %s, ", count[model], clip(30, model))
	}
	return text.String()
}

// usesOf are the resources of a machine: reserved of all, and measured where that is known. Capacities
// are in MiB and thousandths of a core or a device, shares in percent.
func usesOf(m wire.Machine) []useBar {
	list := []useBar{
		{Name: "CPUs", Used: cores(m.Used.CPUMilli), Total: cores(m.Capacity.CPUMilli),
			Share: percent(m.Used.CPUMilli, m.Capacity.CPUMilli)},
		{Name: "Memory", Used: berth.BytesText(m.Used.MemoryMiB << 20),
			Total: berth.BytesText(m.Capacity.MemoryMiB << 20), Share: percent(m.Used.MemoryMiB, m.Capacity.MemoryMiB)},
		{Name: "Disk", Used: berth.BytesText(m.Used.DiskMiB << 20), Total: berth.BytesText(m.Capacity.DiskMiB << 20),
			Share: percent(m.Used.DiskMiB, m.Capacity.DiskMiB)},
	}
	if m.Capacity.GPUMilli > 0 {
		list = append(list, useBar{Name: "GPUs", Used: gpus(m.Used.GPUMilli), Total: gpus(m.Capacity.GPUMilli),
			Share: percent(m.Used.GPUMilli, m.Capacity.GPUMilli)})
	}
	if m.Measured != nil {
		list[0].Measured = cores(m.Measured.CPUMilli)
		list[1].Measured = berth.BytesText(m.Measured.MemoryMiB << 20)
	}
	return list
}
