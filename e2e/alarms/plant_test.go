package alarms_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/api/client"
	"berth/e2e/commands"
	"berth/e2e/rig"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/spec"
)

// plant is a stack with one replica for each set of roles, so that the loss of a part is the loss of a process.
type plant struct {
	*rig.Stack
	t testing.TB

	workers, leader, dispatch *rig.Replica      // each serves the API too
	tls                       string            // address of one more replica, which serves the API by HTTPS
	stopTLS                   func()            // ends that replica, which no proxy separates from its servers
	certificate               *certificate      // of that replica
	objects                   string            // folder of the object store, on a file system of its own
	diskOfM4                  string            // file system of the agent m004
	hides, refuses, unlisted  *faultcloud.Cloud // providers with faults; lab has none
	key                       string            // file of secret keys
	receiver                  *httptest.Server
	mails                     *mailServer
	engine                    *runtimetest.Dockerd // of m006
	prometheus                *prometheus
}

const (
	diskBytes = 128 << 20 // size of each small file system
	agents    = 6         // of which m005 has GPUs, and m006 a real engine
)

// cloudFile is the file of --cloud; offers are the machines that the clouds sell, larger than those of the stack.
const (
	cloudFile = "url: http://127.0.0.1:1\noffers: %s\nproviders:\n" +
		"  lab: {kind: exec, regions: [here], command: [%s, --file=%s]}\n" +
		"  hides: {kind: exec, regions: [here], command: [%[2]s, --file=%[4]s, --lag-least=1h, --lag-most=1h]}\n" +
		"  refuses: {kind: exec, regions: [here], command: [%[2]s, --file=%[5]s]}\n" +
		"  unlisted: {kind: exec, regions: [here], command: [%[2]s, --file=%[6]s]}\n"
	offers = "provider,region,zone,type,market,cpus,memory_mib,gpus,gpu_type,price_per_hour,source,as_of\n" +
		"lab,here,,large,on_demand,128,262144,0,,1.50,example value,2026-11-26\n"
)

// startPlant starts the stack, its agents and Prometheus. All of it ends with the benchmark.
func startPlant(t testing.TB) *plant {
	t.Helper()
	p := &plant{t: t, objects: filepath.Join(mountDisk(t, "objects"), "store"), diskOfM4: mountDisk(t, "m004")}
	p.receiver = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(p.receiver.Close)
	p.mails = startMailServer(t)
	cloudFlag, err := p.writeFiles()
	if err != nil {
		t.Fatal(err)
	}
	p.Stack, err = rig.Start(t.Context(), rig.Options{
		Workshop: workshop, Linked: true, First: []string{"--role=api,worker"},
		Berthd: []string{
			"--blob-url=file://" + p.objects, "--secret-key-file=" + p.key, cloudFlag, "--webhook-allow=127.0.0.0/8",
			"--smtp=smtp://" + p.mails.address, "--smtp-from=berth@example.com",
		},
	})
	if p.Stack != nil {
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Logf("stop the stack: %v", err)
			}
		})
	}
	if err == nil {
		err = p.startOthers(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	p.prometheus = startPrometheus(t, p.tls, p.workers.Address(), p.leader.Address(), p.dispatch.Address())
	return p
}

// writeFiles writes the key file and the files of the cloud, builds the cloud's program, and returns the flag --cloud.
func (p *plant) writeFiles() (flag string, err error) {
	in := func(name string) string { return filepath.Join(workshop.Dir, name) }
	p.key = in("secret-key")
	p.hides, p.refuses = faultcloud.New(in("hides.json"), time.Now), faultcloud.New(in("refuses.json"), time.Now)
	p.unlisted = faultcloud.New(in("unlisted.json"), time.Now)
	clouds := fmt.Sprintf(cloudFile, in("offers.csv"), in("bin/faultcloud"), in("lab.json"), p.hides.Path,
		p.refuses.Path, p.unlisted.Path)
	return "--cloud=" + in("cloud.yaml"), errors.Join(
		os.Mkdir(p.objects, 0o755), sealer.Make(p.key),
		commands.Build(in("bin"), commands.Shipped, "e2e/faultcloud", "berth"),
		os.WriteFile(in("offers.csv"), []byte(offers), 0o600),
		os.WriteFile(in("cloud.yaml"), []byte(clouds), 0o600),
		p.setGPUs(gpusOfM5))
}

// startOthers starts the other replicas and the agents.
func (p *plant) startOthers(ctx context.Context) (err error) {
	p.workers = p.Replicas()[0]
	if p.leader, err = p.AddReplica(ctx, "--role=api,leader"); err != nil {
		return err
	}
	if p.dispatch, err = p.AddReplica(ctx, "--role=api,dispatch"); err != nil {
		return err
	}
	if p.certificate, err = newCertificate(workshop.Dir); err == nil {
		err = p.certificate.issue(valid)
	}
	if err != nil {
		return err
	}
	if p.tls, err = commands.Address(); err != nil {
		return err
	}
	stop, err := p.StartExtra("berthd-tls", "--role=api", "--listen="+p.tls, "--blob-url=file://"+p.objects,
		"--tls-cert="+p.certificate.cert, "--tls-key="+p.certificate.key, "--database-conns=4")
	if err != nil {
		return err
	}
	p.stopTLS = sync.OnceFunc(stop)
	p.t.Cleanup(p.stopTLS)
	if err := p.Join(ctx, agents-3); err != nil {
		return err
	}
	if err := p.JoinWith(ctx, 1, "--runtime=fake", "--no-gpus", "--state-dir="+p.diskOfM4); err != nil {
		return err
	}
	if err := p.JoinWith(ctx, 1, "--runtime=fake", "--fake-gpus="+filepath.Join(workshop.Dir, "gpus.yaml")); err != nil {
		return err
	}
	p.engine = runtimetest.StartDockerd(p.t)
	if err := p.JoinWith(ctx, 1, "--docker-host="+p.engine.Host(), "--no-gpus", "--deadman=off"); err != nil {
		return err
	}
	// Its engine lacks the image of the jobs.
	_, err = p.API.Taint(ctx, "m006", spec.TaintChange{Add: []string{"engine"}})
	return err
}

// mountDisk returns a folder with a small file system of its own, which is unmounted at the end.
func mountDisk(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(workshop.Dir, "disk-"+name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", diskBytes)); err != nil {
		t.Fatalf("mount a small file system at %s, which needs root: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill writes a file that leaves so small a share of a small file system free.
func fill(dir string, free float64) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return err
	}
	size := int64(fs.Bavail)*fs.Bsize - int64(free*diskBytes)
	return os.WriteFile(filepath.Join(dir, "filler"), make([]byte, max(0, size)), 0o600)
}

// as returns a client of a tenant, which is created.
func (p *plant) as(ctx context.Context, tenant berth.TenantID) (*client.Client, error) {
	if _, err := p.API.CreateTenant(ctx, spec.NewTenant{ID: tenant}); err != nil {
		return nil, err
	}
	made, err := p.API.CreateToken(ctx, spec.NewToken{Name: string(tenant), Tenant: tenant})
	if err != nil {
		return nil, err
	}
	c := client.New(p.URL, made.Secret)
	p.t.Cleanup(c.Close)
	return c, nil
}

// job is a small job.
func job(name string, command ...string) spec.Job {
	cpus, memory, grace := spec.MilliCPU(100), spec.MiB(64), spec.Duration(time.Second)
	return spec.Job{
		Name: name, Image: "testprog", Command: command, StopGrace: &grace,
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
	}
}

// reaches waits until a job has a status.
func reaches(ctx context.Context, c *client.Client, id berth.JobID, status berth.State) error {
	return rig.Await(ctx, 2*time.Minute, func(ctx context.Context) error {
		j, err := c.Job(ctx, id)
		if err == nil && j.Status != status {
			err = fmt.Errorf("job %s is %s, want %s", j.Name, j.Status, status)
		}
		return err
	})
}

// session opens a session of a person in the database, who runs statements in a transaction and leaves it open. end
// ends the session as the runbooks do.
func (p *plant) session(ctx context.Context, statements ...string) (end func(context.Context) error, err error) {
	c, err := pgx.Connect(ctx, p.DatabaseURL())
	if err != nil {
		return nil, err
	}
	if _, err := c.Exec(ctx, "BEGIN; "+strings.Join(statements, "; ")); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	pid := c.PgConn().PID()
	return func(ctx context.Context) error {
		_, err := p.DB.Exec(ctx, `SELECT pg_terminate_backend($1)`, pid)
		_ = c.Close(ctx) // the server has ended it
		return err
	}, nil
}

// signal sends a signal to the first n agents.
func (p *plant) signal(n int, s syscall.Signal) func(context.Context) error {
	return func(context.Context) error {
		for _, a := range p.Agents()[:n] {
			a.Signal(s)
		}
		return nil
	}
}
