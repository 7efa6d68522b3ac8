package install_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const compose = "../../deploy/compose/compose.yaml"

// composeFile is the part of a Compose file that the tests below look at.
type composeFile struct {
	Services map[string]struct {
		Image       string            `yaml:"image"`
		NetworkMode string            `yaml:"network_mode"`
		Environment map[string]string `yaml:"environment"`
		Command     []string          `yaml:"command"`
		ReadOnly    bool              `yaml:"read_only"`
		CapDrop     []string          `yaml:"cap_drop"`
		Volumes     []string          `yaml:"volumes"`
	} `yaml:"services"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	b, err := os.ReadFile(compose)
	if err != nil {
		t.Fatal(err)
	}
	var f composeFile
	if err := yaml.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Services) != 3 {
		t.Fatalf("%s has %d services, want 3", compose, len(f.Services))
	}
	return f
}

// The services are on the host's network: whatever listens elsewhere than on loopback is open to all.
func TestComposeServicesListenOnLoopback(t *testing.T) {
	t.Parallel()
	f := readCompose(t)
	for name, variable := range map[string]string{"temporal": "BERTH_LISTEN", "berthd": "BERTH_LISTEN"} {
		if at := f.Services[name].Environment[variable]; !strings.Contains(at, "127.0.0.1:") {
			t.Errorf("%s listens at %q", name, at)
		}
	}
	if a := f.Services["postgres"].Environment["POSTGRES_INITDB_ARGS"]; a != "--auth=scram-sha-256" {
		t.Errorf("the image of PostgreSQL trusts all users of the host: initdb has the options %q", a)
	}
	if c := f.Services["postgres"].Command; !strings.Contains(strings.Join(c, " "), "listen_addresses=127.0.0.1") {
		t.Errorf("postgres is started by %q", c)
	}
	for _, name := range []string{"temporal", "berthd"} {
		s := f.Services[name]
		if !s.ReadOnly || strings.Join(s.CapDrop, "") != "ALL" || s.NetworkMode != "host" {
			t.Errorf("%s: read_only %v, cap_drop %v, network_mode %q", name, s.ReadOnly, s.CapDrop, s.NetworkMode)
		}
	}
}

// An unknown variable would be ignored, and the service would start without the setting.
func TestComposeSetsFlagsOfThePrograms(t *testing.T) {
	t.Parallel()
	f := readCompose(t)
	for service, program := range map[string]string{"temporal": "berth-temporal", "berthd": "berthd"} {
		reference, err := os.ReadFile("../../docs/reference/" + program + ".md")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(f.Services[service].Image, "localhost/berth/"+program+":") {
			t.Errorf("%s runs the image %s", service, f.Services[service].Image)
		}
		for variable := range f.Services[service].Environment {
			if !bytes.Contains(reference, []byte("| `"+variable+"` |")) {
				t.Errorf("%s sets %s, which %s does not read", service, variable, program)
			}
		}
	}
}

// The page's file of settings has each variable that the services require, and the folders that they mount are made
// by its commands.
func TestTheComposePageMakesWhatTheFileNeeds(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(compose)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operate/compose.md")
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`\$\{([A-Z_]+):\?`).FindAllSubmatch(text, -1)
	if len(required) < 4 {
		t.Fatalf("%s requires %d variables", compose, len(required))
	}
	for _, m := range required {
		if !bytes.Contains(page, append([]byte("\n"), append(m[1], '=')...)) {
			t.Errorf("the page's .env lacks %s", m[1])
		}
	}
	for name, s := range readCompose(t).Services {
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			here := filepath.Join(filepath.Dir(compose), from)
			if _, err := os.Stat(here); err != nil && !bytes.Contains(page, []byte(strings.TrimPrefix(from, "./"))) {
				t.Errorf("%s mounts %s, which neither the folder has nor the page makes", name, from)
			}
		}
	}
}

// Compose itself reads the file, where it is installed.
func TestComposeReadsTheFile(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("docker-compose")
	if err != nil {
		t.Logf("the file was not given to Compose: %v", err)
		return
	}
	b, err := os.ReadFile(compose)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // no .env of somebody who has followed the page
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(env ...string) (string, error) {
		cmd := exec.Command(program, "--file", filepath.Join(dir, "compose.yaml"), "config", "--quiet")
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := config("BERTH_VERSION=1.2.3", "POSTGRES_PASSWORD=a", "BERTH_DATABASE_PASSWORD=b", "TEMPORAL_DATABASE_PASSWORD=c"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := config(); err == nil || !strings.Contains(out, "set it in .env") {
		t.Errorf("without settings: %v\n%s", err, out)
	}
}
