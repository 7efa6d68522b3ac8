package attacks_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"berth"
)

// inspect returns the engine's full description of a job's container. The container must exist.
func (a *attempt) inspect(id berth.JobID) container.InspectResponse {
	a.t.Helper()
	api := a.engine()
	defer api.Close()
	found, err := api.ContainerList(a.t.Context(), container.ListOptions{
		All: true, Filters: filters.NewArgs(filters.Arg("label", berth.LabelJob+"="+string(id))),
	})
	if err != nil || len(found) != 1 {
		a.t.Fatalf("containers of job %s: %v, %v", id, found, err)
	}
	c, err := api.ContainerInspect(a.t.Context(), found[0].ID)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *attempt) engine() *client.Client {
	a.t.Helper()
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		a.t.Fatal(err)
	}
	return api
}

// addressOf returns the address of a job's container in its own network, and that network's gateway.
func (a *attempt) addressOf(id berth.JobID) (own, gateway string) {
	a.t.Helper()
	for _, n := range a.inspect(id).NetworkSettings.Networks {
		return n.IPAddress, n.Gateway
	}
	a.t.Fatalf("job %s has no network", id)
	return "", ""
}

// cancel cancels a job with a token of its tenant.
func (a *attempt) cancel(token string, id berth.JobID) {
	a.call(token, "POST", "/v1/jobs/"+string(id)+"/cancel", "")
}

// neighborPort is the port of the victim's service in its container.
const neighborPort = "29500"

// reach dials the targets from a container of the attacker with this egress policy, and returns the targets that
// accepted a connection. GATEWAY in a target stands for the address of the container's gateway. A dial to the
// container's own service shows that dials work.
func (a *attempt) reach(policy map[string]any, targets ...string) (reached []string) {
	a.t.Helper()
	own := "tcp!127.0.0.1:" + neighborPort
	id := a.submit(a.attacker, map[string]any{"network": policy}, "serve", neighborPort)
	defer a.cancel(a.attacker, id)
	a.awaitLog(a.attacker, id, "ready")
	_, gateway := a.addressOf(id)
	for i, t := range targets {
		targets[i] = strings.ReplaceAll(t, "GATEWAY", gateway)
	}
	log := a.exec(id, append([]string{"/testprog", "dial", own}, targets...)...)
	for line := range strings.Lines(log) {
		if target, ok := strings.CutSuffix(strings.TrimSpace(line), " reached"); ok && target != own {
			reached = append(reached, target)
		}
	}
	if !strings.Contains(log, own+" reached") || strings.Count(log, "\n") != len(targets)+1 {
		a.t.Fatalf("dials in a container of policy %v: %s", policy, log)
	}
	return reached
}

func reachFromContainer(a *attempt) {
	hers := a.submit(a.victim, nil, "serve", neighborPort)
	defer a.cancel(a.victim, hers)
	a.awaitLog(a.victim, hers, "ready")
	service, _ := a.addressOf(hers)
	host := a.newCanary()
	_, apiPort, err := net.SplitHostPort(strings.TrimPrefix(a.URL, "http://"))
	if err != nil {
		a.t.Fatal(err)
	}
	_, temporal, err := net.SplitHostPort(a.Temporal)
	if err != nil {
		a.t.Fatal(err)
	}
	targets := []string{
		"tcp!169.254.169.254:80", "tcp![fd00:ec2::254]:80", "tcp!" + service + ":" + neighborPort,
		"unix!/var/run/docker.sock", "unix!/run/docker.sock", "unix!/run/containerd/containerd.sock",
	}
	hosts := []string{"GATEWAY", "172.17.0.1"}
	if own := hostAddress(netip.Addr.IsValid); own != "" {
		hosts = append(hosts, own)
	}
	database := a.DB.Config().ConnConfig.Port
	for _, h := range hosts {
		for _, port := range []string{host.port, apiPort, temporal, fmt.Sprint(database), "22", "2375"} {
			targets = append(targets, "tcp!"+net.JoinHostPort(h, port))
		}
	}
	for _, policy := range []map[string]any{
		{"egress": "public"}, {"egress": "none"},
		{"egress": "list", "allow": []any{map[string]any{"to": "8.8.8.0/24"}}},
	} {
		if reached := a.reach(policy, slices.Clone(targets)...); len(reached) > 0 {
			a.breach("policy %v reaches %v", policy["egress"], reached)
		}
	}
	// Connections from the host show that both services run.
	for _, address := range []string{service + ":" + neighborPort, "127.0.0.1:" + host.port} {
		conn, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			a.breach("the test is blind: %v", err)
			continue
		}
		_ = conn.Close()
	}
	if n := host.calls.Load(); n > 1 {
		a.breach("%d connections came to the host", n)
	}
	a.saw("%d addresses by public, none and list: no connection", len(targets))
}

func temporalFromContainer(a *attempt) {
	_, port, err := net.SplitHostPort(a.Temporal)
	if err != nil {
		a.t.Fatal(err)
	}
	reached := a.reach(map[string]any{"egress": "public"}, "tcp!"+a.Temporal, "tcp!GATEWAY:"+port)
	if len(reached) > 0 {
		a.breach("a container reaches %v", reached)
	}
	for i, p := range a.Agents() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err != nil {
			a.t.Fatal(err)
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			a.t.Fatal(err)
		}
		state := a.scanFolder(a.StateDir(fmt.Sprintf("m%03d", i+1)), a.Temporal)
		for what, has := range map[string]bool{"its environment": strings.Contains(string(b), a.Temporal),
			"its command line": strings.Contains(string(line), a.Temporal), "its files": len(state) > 0} {
			if has {
				a.breach("agent %d knows Temporal's address from %s", i+1, what)
			}
		}
	}
	a.saw("no connection; agents know no address of Temporal")
}

func hostPaths(a *attempt) {
	for _, from := range []string{
		"file:///", "file:///etc", "file:///proc", "file:///var/run/docker.sock", "file:///dev", "/etc", "../../etc",
	} {
		for _, mode := range []string{"copy", "mount"} {
			more := map[string]any{"inputs": []any{map[string]any{"from": from, "to": "/in", "mode": mode}}}
			got := a.call(a.attacker, "POST", "/v1/jobs", a.job(more, "exit", "0"))
			if got.Status != 422 && got.Status != 400 {
				a.breach("input %s, mode %s: %d %s", from, mode, got.Status, got.clipped())
			}
		}
	}
	for _, to := range []string{"/", "/proc/x", "/sys", "/dev/shm", "/etc/passwd", "../x"} {
		more := map[string]any{"inputs": []any{map[string]any{"from": "https://example.org/x", "to": to}}}
		got := a.call(a.attacker, "POST", "/v1/jobs", a.job(more, "exit", "0"))
		if got.Status != 422 && got.Status != 400 {
			a.breach("target %s: %d %s", to, got.Status, got.clipped())
		}
	}
	// An output that is a link must not expose the host's file that the link points to.
	marker := "canary-of-the-host-" + berth.NewSecret()[:16]
	if err := os.WriteFile(a.Dir+"/host-file", []byte(marker), 0o644); err != nil {
		a.t.Fatal(err)
	}
	more := map[string]any{
		"outputs": []any{map[string]any{"name": "stolen", "path": "/workspace/out", "when": "always"}},
	}
	j, _ := a.output(a.attacker, more, "do", "link "+a.Dir+"/host-file /workspace/out")
	if found := a.scan(marker); !slices.Equal(found, []string{"host-file"}) {
		a.breach("the host's file is in %v", found)
	}
	got := a.call(a.attacker, "GET", "/v1/jobs/"+string(j.ID)+"/outputs/stolen", "")
	if strings.Contains(string(got.Body), marker) {
		a.breach("the output has the host's file")
	}
	a.saw("20 paths: 422; output that is a link: %d, job %s", got.Status, j.Status)
}

func systemCalls(a *attempt) {
	hers := a.submit(a.victim, nil, "sleep", "10m")
	defer a.cancel(a.victim, hers)
	a.running(hers)
	pid := a.inspect(hers).State.Pid
	refused := map[string][]syscall.Errno{
		"setuid": {syscall.EPERM}, "chroot": {syscall.EPERM}, "mknod": {syscall.EPERM, syscall.EACCES}, "unshare": {syscall.EPERM},
		"userns": {syscall.EPERM}, "mount": {syscall.EPERM}, "remount": {syscall.EPERM}, "pivot": {syscall.EPERM},
		"keyctl": {syscall.EPERM, syscall.ENOSYS}, "bpf": {syscall.EPERM}, "perf": {syscall.EPERM, syscall.EACCES},
		"module": {syscall.EPERM}, "sysctl": {syscall.EROFS, syscall.EACCES},
		"sysrq": {syscall.EROFS, syscall.EACCES, syscall.ENOENT}, "ptrace": {syscall.ESRCH}, "kill": {syscall.ESRCH},
		"memory": {syscall.ENOENT},
	}
	var names []string
	for name := range refused {
		names = append(names, name)
	}
	slices.Sort(names)
	_, log := a.output(a.attacker, nil, append([]string{"attack", fmt.Sprint(pid)}, names...)...)
	tried := 0
	for line := range strings.Lines(log) {
		var name string
		var number syscall.Errno
		if _, err := fmt.Sscanf(line, "%s %d", &name, &number); err != nil {
			continue
		}
		tried++
		if !slices.Contains(refused[name], number) {
			a.breach("%s: %v", name, number)
		}
	}
	if tried != len(names) {
		a.breach("%d of %d were tried: %s", tried, len(names), log)
	}
	a.saw("%d system calls refused by the kernel", tried)
}

func leftovers(a *attempt) {
	here := map[string]any{"placement": map[string]any{"avoid_machines": []string{"m002"}}}
	hers, log := a.output(a.victim, here, "do",
		"write-file /dev/shm/hers canary", "write-file /workspace/hers canary", "echo written")
	if hers.Status != berth.Succeeded {
		a.t.Fatalf("the victim's job %s: %s", hers.Status, log)
	}
	mine, log := a.output(a.attacker, here, "do", "list /dev/shm", "list /workspace", "echo listed")
	if mine.Status != berth.Succeeded || strings.Contains(log, "hers") || !strings.Contains(log, "listed") {
		a.breach("the folders of the job after: %s", log)
	}
	// Each tenant asks for three half GPUs. The stack has four GPUs, so at least two of the GPUs hold two shares.
	gpu := map[string]any{"resources": map[string]any{"cpus": 0.1, "memory": "64MiB", "gpus": 0.5}}
	var jobs []berth.JobID
	for range 3 {
		for _, token := range []string{a.victim, a.attacker} {
			id := a.submit(token, gpu, "sleep", "10m")
			defer a.cancel(token, id)
			jobs = append(jobs, id)
		}
	}
	held := 0
	a.within(atMost(2*time.Minute), "shares of GPUs are given", func() bool {
		err := a.DB.QueryRow(a.t.Context(), `SELECT count(*) FROM gpu_claims`).Scan(&held)
		return err == nil && held >= len(jobs)
	})
	var shared int
	err := a.DB.QueryRow(a.t.Context(), `
		SELECT count(*) FROM (SELECT c.machine_id, c.idx FROM gpu_claims c
		JOIN allocations a ON a.id = c.alloc_id JOIN jobs j ON j.id = a.job
		WHERE a.state <> 'released' GROUP BY 1, 2 HAVING count(DISTINCT j.tenant) > 1) shared`).Scan(&shared)
	if err != nil || shared > 0 {
		a.breach("%d devices have two tenants, %v", shared, err)
	}
	a.saw("folders empty; %d shares of GPUs, no device with two tenants", held)
}

func visibleDevices(a *attempt) {
	image := a.evilImage()
	_, log := a.output(a.attacker, map[string]any{"image": image}, "env", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD")
	if !strings.Contains(log, "NVIDIA_VISIBLE_DEVICES=void") {
		a.breach("an image of a job without GPUs: %s", log)
	}
	a.saw("image says all, job has void")
}

func secretTraces(a *attempt) {
	more := map[string]any{"secrets": []string{"hers"}, "secrets_as": "file"}
	id := a.submit(a.victim, more, "do", "digest hers /run/secrets/hers", "echo read", "sleep 10m")
	a.awaitLog(a.victim, id, "read")
	sum := sha256.Sum256([]byte(a.secret))
	if !strings.Contains(a.log(a.victim, id), "file "+hex.EncodeToString(sum[:])) {
		a.t.Fatalf("the job has not read the secret: %s", a.log(a.victim, id))
	}
	if strings.Contains(a.inspectRaw(id), a.secret) {
		a.breach("the inspection of a job with files has the secret")
	}
	if log := a.log(a.victim, id); strings.Contains(log, a.secret) {
		a.breach("the log has the secret: %s", log)
	}
	a.cancel(a.victim, id)
	a.ended(id)
	a.within(atMost(time.Minute), "no file of the secret on the machines", func() bool { return len(a.scan(a.secret)) == 0 })
	if found := a.scan(a.secret); len(found) > 0 {
		a.breach("the secret is in %v", found)
	}
	a.saw("no trace in inspection, log or files")
}

func secretVariables(a *attempt) {
	hash := sha256.Sum256([]byte(a.secret))
	sum := hex.EncodeToString(hash[:])
	seen := func(more map[string]any) bool {
		more["secrets"] = []string{"hers"}
		id := a.submit(a.victim, more, "do", "digest hers /run/secrets/hers", "echo read", "sleep 10m")
		defer a.cancel(a.victim, id)
		a.awaitLog(a.victim, id, "read")
		if given := strings.Count(a.log(a.victim, id), sum); given != 1 {
			a.t.Fatalf("the secret was given in %d forms, want one: %s", given, a.log(a.victim, id))
		}
		return strings.Contains(a.inspectRaw(id), a.secret)
	}
	if !seen(map[string]any{"secrets_as": "env"}) {
		a.t.Fatal("the inspection does not show a variable: the attack proves nothing")
	}
	if seen(map[string]any{}) {
		a.breach("without secrets_as the engine's inspection has the secret as a variable")
	}
	a.saw("a file, no variable")
}

func exhaustion(a *attempt) {
	hers := a.submit(a.victim, nil, "lines", "100000", "200ms")
	defer a.cancel(a.victim, hers)
	a.running(hers)
	for what, c := range map[string]struct {
		more    map[string]any
		command []string
		reason  string // "" if the job may succeed
	}{
		"memory": {
			map[string]any{"resources": map[string]any{"cpus": 0.1, "memory": "64MiB"}},
			[]string{"eat-memory", "1024"}, "oom",
		},
		"/dev/shm": {
			map[string]any{"resources": map[string]any{"cpus": 0.1, "memory": "64MiB", "shm_size": "4MiB"}},
			[]string{"fill", "/dev/shm/x", "8"}, "exit",
		},
		"disk": {
			map[string]any{"resources": map[string]any{"cpus": 0.1, "memory": "64MiB", "disk": "32MiB"}},
			[]string{"do", "fill /workspace/x 256", "sleep 10m"}, "disk_limit",
		},
		"fork": {nil, []string{"fork", "300", "1s"}, ""},
		"logs": {nil, []string{"spam", "20000", "1024"}, ""},
	} {
		j, _ := a.output(a.attacker, c.more, c.command...)
		reason := ""
		if j.Reason != nil {
			reason = string(j.Reason.Code)
		}
		if c.reason != "" && j.Status != berth.Failed {
			a.breach("%s: %s %s", what, j.Status, reason)
		}
		a.saw("%s: %s %s", what, j.Status, reason)
		if n := a.show(hers); n.Status != berth.Running || n.Losses > 0 || n.Attempt != 1 {
			a.breach("%s: the neighbour is %s in attempt %d", what, n.Status, n.Attempt)
		}
	}
	machines, err := a.API.Machines(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	for _, m := range machines.Items {
		if m.State != berth.MachineReady {
			a.breach("machine %s is %s", m.ID, m.State)
		}
	}
}
