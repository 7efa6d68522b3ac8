package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	dockerclient "github.com/docker/docker/client"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/failure"
	"berth/internal/machine/docker"
)

// hostEngine is the machine over this host's Docker Engine, with room for parallel
// jobs of a tenth of a core and no more.
const hostEngine berth.MachineID = "docker"

const parallel = 8

// bare makes containers as Berth does, by the engine's own calls and no others.
type bare struct {
	*stack
	api    *dockerclient.Client
	config container.Config
	host   container.HostConfig
	next   atomic.Int64
}

// joinDocker joins the machine and copies the engine's configuration of one job's container.
func (s *stack) joinDocker() (image string, b *bare) {
	image = runtimetest.Image(s.b, "")
	engine, err := docker.Open("", docker.Options{Logger: s.log})
	s.must(err)
	s.b.Cleanup(func() { _ = engine.Close() })
	b = &bare{stack: s}
	b.api, err = dockerclient.NewClientWithOpts(dockerclient.WithHost(dockerclient.DefaultDockerHost), dockerclient.WithAPIVersionNegotiation())
	s.must(err)
	s.b.Cleanup(func() { _ = b.api.Close() })
	s.b.Cleanup(b.clear)
	s.join(hostEngine, engine, berth.Capacity{CPUMilli: 100 * parallel})

	id := s.submit(jobSpec(hostEngine, image, "sleep", "2s"))
	name := berth.ContainerName(id, 0, 1)
	var found container.InspectResponse
	s.until("the container runs", func() bool {
		found, err = b.api.ContainerInspect(s.b.Context(), name)
		return err == nil && found.State.Running
	})
	b.config, b.host = *found.Config, *found.HostConfig
	b.config.Hostname = ""
	b.config.Labels = map[string]string{"berth.bench": "bare"}
	for i := range b.host.Mounts {
		b.host.Mounts[i].Source = filepath.Join(s.dir, fmt.Sprintf("bare-%d", i))
		s.must(os.MkdirAll(b.host.Mounts[i].Source, 0o777))
	}
	s.ends(id)
	return image, b
}

// clear removes the containers that an interrupted run left in the engine.
func (b *bare) clear() {
	ctx := context.Background() // the benchmark's own is over
	cluster, err := b.db.Cluster.ID(ctx)
	if err != nil {
		b.b.Error(err)
		return
	}
	for _, label := range []string{"berth.bench=bare", berth.LabelCluster + "=" + cluster} {
		found, err := b.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
		if err != nil {
			b.b.Error(err)
		}
		for _, c := range found {
			_ = b.api.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
}

// begin creates and starts a container and returns the time of its start by the engine's own
// stamp, by which a job's container is measured too.
func (b *bare) begin(command ...string) (id string, err error) {
	config, host := b.config, b.host
	config.Cmd = command
	made, err := b.api.ContainerCreate(b.b.Context(), &config, &host, nil, nil, fmt.Sprintf("berth-bench-%d-%d", os.Getpid(), b.next.Add(1)))
	if err != nil {
		return "", err
	}
	return made.ID, b.api.ContainerStart(b.b.Context(), made.ID, container.StartOptions{})
}

func (b *bare) startedAt(id string) time.Time {
	c, err := b.api.ContainerInspect(b.b.Context(), id)
	b.must(err)
	at, err := time.Parse(time.RFC3339Nano, c.State.StartedAt)
	b.must(err)
	return at
}

// end waits for a container's end and removes it.
func (b *bare) end(id string) error {
	ended, failed := b.api.ContainerWait(b.b.Context(), id, container.WaitConditionNotRunning)
	select {
	case <-ended:
	case err := <-failed:
		return err
	}
	return b.api.ContainerRemove(b.b.Context(), id, container.RemoveOptions{Force: true, RemoveVolumes: true})
}

// measureDockerLatency compares, one by one and by turns, how long it takes
// until a container runs.
func (s *stack) measureDockerLatency(t *table, image string, b *bare, n int) {
	var through, alone []time.Duration
	for range n {
		began := time.Now()
		id := s.submit(jobSpec(hostEngine, image, "exit", "0"))
		s.ends(id)
		through = append(through, s.jobStartedAt(id).Sub(began))
		b.gone()

		began = time.Now()
		c, err := b.begin("exit", "0")
		s.must(err)
		alone = append(alone, b.startedAt(c).Sub(began))
		s.must(b.end(c))
	}
	for _, q := range []struct {
		name string
		part float64
		must float64
		aim  float64
	}{{"p50", 0.50, 30, 20}, {"p99", 0.99, 80, 50}} {
		x, y := quantile(through, q.part), quantile(alone, q.part)
		t.add(figure{name: "submit to running on Docker over bare create+start, " + q.name, value: ms(x - y), unit: "ms", must: q.must, aim: q.aim,
			note: fmt.Sprintf("%.0f ms over %.0f ms", ms(x), ms(y))})
	}
}

// jobStartedAt is the engine's stamp of a job's only container.
func (s *stack) jobStartedAt(id berth.JobID) time.Time {
	var text []byte
	s.must(s.db.Pool().QueryRow(s.b.Context(), `SELECT exit FROM allocations WHERE job = $1`, id).Scan(&text))
	var x failure.Exit
	s.must(json.Unmarshal(text, &x))
	return x.StartedAt
}

// gone waits until none of our jobs' containers is left in the engine.
func (b *bare) gone() {
	cluster, err := b.db.Cluster.ID(b.b.Context())
	b.must(err)
	b.until("every container is removed", func() bool {
		found, err := b.api.ContainerList(b.b.Context(), container.ListOptions{All: true,
			Filters: filters.NewArgs(filters.Arg("label", berth.LabelCluster+"="+cluster))})
		b.must(err)
		return len(found) == 0
	})
}

// measureDockerRate runs as many containers at once as the machine has room
// for, to the removal of the last.
func (s *stack) measureDockerRate(t *table, image string, b *bare, rounds, n int) {
	var ratios, through, alone []float64
	for i := range rounds {
		turns := []func(){
			func() { through = append(through, s.dockerJobs(image, b, n)) },
			func() { alone = append(alone, b.containers(n)) },
		}
		turns[i%2]()
		turns[1-i%2]()
		ratios = append(ratios, through[i]/alone[i])
		fmt.Printf("round %d: %.2f containers/s through Berth, %.2f bare, ratio %.2f\n", i+1, through[i], alone[i], ratios[i])
	}
	t.add(figure{name: "containers per second / bare Docker, 8 in parallel", value: median(ratios), unit: "ratio", must: 0.65, aim: 0.85, high: true,
		note: fmt.Sprintf("%.1f/s of %.1f/s", median(through), median(alone))})
}

func (s *stack) dockerJobs(image string, b *bare, n int) float64 {
	began := time.Now()
	for range n {
		s.submit(jobSpec(hostEngine, image, "exit", "0"))
	}
	s.idle()
	b.gone()
	return float64(n) / time.Since(began).Seconds()
}

func (b *bare) containers(n int) float64 {
	began := time.Now()
	next := make(chan struct{})
	var all sync.WaitGroup
	for range parallel {
		all.Go(func() {
			for range next {
				id, err := b.begin("exit", "0")
				if err == nil {
					err = b.end(id)
				}
				if err != nil && !strings.Contains(err.Error(), "is already in progress") {
					b.b.Error(err)
				}
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	all.Wait()
	return float64(n) / time.Since(began).Seconds()
}
