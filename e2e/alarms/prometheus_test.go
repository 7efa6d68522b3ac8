package alarms_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/e2e/commands"
	"berth/e2e/rig"
)

// scrapeEvery is the interval of scrapes: a minute, the longest one that the page of alerts allows, made shorter as the
// rules are.
const scrapeEvery = time.Minute / faster

// prometheus is a running Prometheus server.
type prometheus struct {
	base string
	http http.Client
}

// alert is an alert of the server, pending or firing.
type alert struct {
	Labels map[string]string `json:"labels"`
	State  string            `json:"state"`
}

// startPrometheus starts a server with the scaled rules. It scrapes the targets by HTTP, and secure by HTTPS.
func startPrometheus(t testing.TB, secure string, targets ...string) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("the server prometheus is missing: run scripts/setup.sh alarms, or apt-get install prometheus")
	}
	address, err := commands.Address()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rules, _ := readRules(t)
	settings := fmt.Sprintf(`global: {scrape_interval: %dms, scrape_timeout: %[1]dms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: berth
    static_configs: [{targets: ['%s']}]
  - job_name: berth-tls
    scheme: https
    tls_config: {insecure_skip_verify: true}
    static_configs: [{targets: ['%s']}]
`, scrapeEvery.Milliseconds(), filepath.Join(dir, "rules.yaml"), strings.Join(targets, "', '"), secure)
	for name, text := range map[string]string{"rules.yaml": scaled(rules), "prometheus.yaml": settings} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(dir, "prometheus.log")
	server, err := rig.StartProcess(log, program, "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address,
		// Samples count for five minutes, and so for a twelfth here.
		fmt.Sprintf("--query.lookback-delta=%dms", (5*time.Minute/faster).Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	p := &prometheus{base: "http://" + address, http: http.Client{Timeout: time.Minute}}
	if err := rig.Await(t.Context(), rig.Patience, func(ctx context.Context) error {
		up, err := p.query(ctx, fmt.Sprintf("count(up == 1) == %d", len(targets)+1))
		if err == nil && !up {
			err = fmt.Errorf("some targets are not up")
		}
		return err
	}); err != nil {
		t.Fatalf("start Prometheus: %v: %s", err, rig.Tail(log))
	}
	return p
}

// alerts returns all alerts that are pending or firing.
func (p *prometheus) alerts(ctx context.Context) ([]alert, error) {
	var body struct {
		Data struct {
			Alerts []alert `json:"alerts"`
		} `json:"data"`
	}
	err := p.get(ctx, "/api/v1/alerts", &body)
	return body.Data.Alerts, err
}

// named returns the alerts of a name.
func (p *prometheus) named(ctx context.Context, name string) (list []alert, err error) {
	all, err := p.alerts(ctx)
	for _, a := range all {
		if a.Labels["alertname"] == name {
			list = append(list, a)
		}
	}
	return list, err
}

// query reports whether an expression has a value now.
func (p *prometheus) query(ctx context.Context, expression string) (bool, error) {
	var body struct {
		Data struct {
			Result []json.RawMessage `json:"result"`
		} `json:"data"`
	}
	err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expression), &body)
	return len(body.Data.Result) > 0, err
}

func (p *prometheus) get(ctx context.Context, path string, body any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return err
	}
	res, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", path, res.StatusCode, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, body)
}
