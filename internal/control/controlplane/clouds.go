package controlplane

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/agentbin"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/control/cloud/identity"
	"berth/internal/control/cloud/offers"
	"berth/internal/control/dispatch"
	"berth/spec"
	"berth/wire"
)

// cloudFile is the file of --cloud. Unknown keys are errors.
type cloudFile struct {
	URL       string                   `yaml:"url"`     // of the API, as agents reach it
	CAFile    string                   `yaml:"ca_file"` // of the API's certificate authority
	Offers    string                   `yaml:"offers"`  // CSV file of machine types and prices, or empty
	Providers map[string]CloudProvider `yaml:"providers"`
}

// CloudProvider is one provider in the file of --cloud. The settings, also the ones by pool, are
// passed to the provider unread.
type CloudProvider struct {
	Kind     string                    `yaml:"kind"`
	Command  []string                  `yaml:"command"`   // of kind exec
	Env      []string                  `yaml:"env"`       // of kind exec, as NAME=value
	Timeout  string                    `yaml:"timeout"`   // of one call, of kind exec
	Parallel int                       `yaml:"processes"` // at once, of kind exec
	Regions  []string                  `yaml:"regions"`
	Files    []string                  `yaml:"files"` // whose change corrects refused settings
	Settings map[string]any            `yaml:"settings"`
	Pools    map[string]map[string]any `yaml:"pools"`
	Identity *CloudIdentity            `yaml:"identity"` // nil: machines join by their join token alone
}

// CloudIdentity are the settings by which a provider's machines must prove their identity when they join.
type CloudIdentity struct {
	Kind         string `yaml:"kind"`         // ec2 or gce
	Account      string `yaml:"account"`      // of kind ec2: 12 digits
	Certificates string `yaml:"certificates"` // of kind ec2: PEM file, or folder with a file for each region
	Project      string `yaml:"project"`      // of kind gce
	Keys         string `yaml:"keys"`         // of kind gce: URL of a JWK set; "": Google's
}

// open returns the verifier of the settings; nil settings have none. A region without a certificate
// could not prove any join, so it is a fault now and not at the first launch.
func (i *CloudIdentity) open(regions []string, log *slog.Logger) (cloud.Identities, error) {
	switch {
	case i == nil:
		return nil, nil
	case i.Kind == string(wire.IdentityEC2) && i.Project == "" && i.Keys == "":
		v, err := identity.NewEC2(i.Account, i.Certificates)
		if err != nil {
			return nil, err
		}
		if lacking := v.Lacks(regions); len(lacking) > 0 {
			return nil, fmt.Errorf("certificates: folder %s has no file for region %s of the provider", i.Certificates,
				strings.Join(lacking, ", "))
		}
		return v, nil
	case i.Kind == string(wire.IdentityGCE) && i.Account == "" && i.Certificates == "":
		keys := cmp.Or(i.Keys, identity.GoogleKeys)
		v, err := identity.NewGCE(i.Project, keys, identity.KeyOptions{Logger: log})
		if err != nil {
			return nil, err
		}
		return v, nil
	}
	return nil, fmt.Errorf("kind %q: allowed are ec2 with account and certificates, and gce with project and keys",
		i.Kind)
}

// NewProvider creates a provider from its part of the file.
type NewProvider func(name string, p CloudProvider, log *slog.Logger) (cloud.Provider, error)

// providerKinds returns the kinds of providers that this version has.
func providerKinds() map[string]NewProvider { return map[string]NewProvider{"exec": newExecProvider} }

// newExecProvider creates a provider that runs a program of the operator for each call. A program that
// is missing is no fault: it may be installed later.
func newExecProvider(name string, p CloudProvider, log *slog.Logger) (cloud.Provider, error) {
	o := cloudexec.Options{Name: name, Command: p.Command, Env: p.Env, Processes: p.Parallel, Logger: log}
	if p.Timeout != "" {
		limit, err := spec.ParseDuration(p.Timeout)
		if err != nil {
			return nil, fmt.Errorf("timeout: %w", err)
		}
		o.Timeout = limit.Std()
	}
	provider, err := cloudexec.New(o)
	if err != nil {
		return nil, err
	}
	return provider, nil
}

// loadClouds reads the file of --cloud with providers of the kinds. It returns all faults at once;
// faults of the form name the line. It does not call a cloud.
func loadClouds(path string, kinds map[string]NewProvider, log *slog.Logger) (cloud.Accounts, error) {
	accounts := cloud.Accounts{Providers: map[string]cloud.Account{}}
	text, err := os.ReadFile(path)
	if err != nil {
		return accounts, fmt.Errorf("cloud file: %w", err)
	}
	var f cloudFile
	if err := yaml.UnmarshalWithOptions(text, &f, yaml.Strict()); err != nil {
		return accounts, fmt.Errorf("cloud file %s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	var faults []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("cloud file %s: "+format, append([]any{path}, args...)...))
		}
	}
	require(isHTTP(f.URL), "url %q: write http://HOST or https://HOST, as new machines reach the API", f.URL)
	accounts.URL = f.URL
	if f.CAFile != "" {
		ca, err := os.ReadFile(f.CAFile)
		block, _ := pem.Decode(ca)
		require(err == nil && block != nil, "ca_file %s: must be a readable file with a certificate in PEM", f.CAFile)
		accounts.CA = string(ca)
	}
	require(len(f.Providers) > 0, "providers: name at least one")
	if accounts.Offers = f.Offers; f.Offers != "" {
		_, err := offers.Load(f.Offers, "") // the lines of all providers are validated
		require(err == nil, "offers: %v", err)
	}
	known := slices.Sorted(maps.Keys(kinds))
	for _, name := range slices.Sorted(maps.Keys(f.Providers)) {
		p := f.Providers[name]
		require(len(spec.NewJoinToken{Pool: name}.Validate()) == 0,
			"provider %q: allowed names are 1 to 63 of a-z, 0-9 and '-', not at either end", name)
		require(len(p.Regions) > 0, "provider %s: regions: name at least one, in which instances are listed", name)
		for _, f := range p.Files {
			require(filepath.IsAbs(f), "provider %s: files: %q is not an absolute path", name, f)
		}
		account := cloud.Account{Regions: p.Regions, Pools: map[string]json.RawMessage{}}
		account.Program, account.Files = p.origin()
		account.Settings, err = settingsOf(p.Settings)
		require(err == nil, "provider %s: settings: %v", name, err)
		for pool, settings := range p.Pools {
			account.Pools[pool], err = settingsOf(settings)
			require(err == nil, "provider %s: settings of pool %s: %v", name, pool, err)
		}
		account.Identities, err = p.Identity.open(p.Regions, log)
		require(err == nil, "provider %s: identity: %v", name, err)
		create, ok := kinds[p.Kind]
		require(ok, "provider %s: kind %q is not known; allowed are %s", name, p.Kind, strings.Join(known, ", "))
		if !ok {
			continue
		}
		account.Provider, err = create(name, p, log)
		require(err == nil, "provider %s: %v", name, err)
		accounts.Providers[name] = account
	}
	return accounts, errors.Join(faults...)
}

// origin returns the program of the provider as a text, and the files that it reads: the list of the key files, and
// the absolute paths among the arguments and the values of the environment.
func (p CloudProvider) origin() (program string, files []string) {
	files = slices.Clone(p.Files)
	for i, word := range slices.Concat(p.Command, p.Env) {
		if _, value, ok := strings.Cut(word, "="); ok {
			word = value
		}
		if i > 0 && filepath.IsAbs(word) { // the first one is the program itself
			files = append(files, word)
		}
	}
	slices.Sort(files)
	return fmt.Sprintf("%q %q %q", p.Kind, p.Command, p.Env), slices.Compact(files)
}

// CheckClouds returns the faults of the file with the providers of cloud machines, as a start would. It
// starts no provider.
func CheckClouds(path string) error {
	_, err := loadClouds(path, providerKinds(), slog.New(slog.DiscardHandler))
	return err
}

// settingsOf returns settings in JSON, or nil for none. Keys are sorted, so equal settings always
// have equal bytes.
func settingsOf(settings map[string]any) (json.RawMessage, error) {
	if settings == nil {
		return nil, nil
	}
	return json.Marshal(settings)
}

// openClouds reads the agents for new machines and the providers, if any are configured. The programs
// stay open, so an upgrade of their files does not change their hashes here.
func (a *assembly) openClouds() (err error) {
	if a.cfg.AgentBinaries != "" {
		if a.agents, err = agentbin.Open(a.cfg.AgentBinaries); err != nil {
			return fmt.Errorf("agent-binaries: %w", err)
		}
	}
	if a.cfg.CloudFile == "" {
		return nil
	}
	kinds := a.opts.Providers
	if kinds == nil {
		kinds = providerKinds()
	}
	a.accounts, err = loadClouds(a.cfg.CloudFile, kinds, a.log)
	a.accounts.Agents = a.agents.Current()
	return err
}

// addMachines adds the part that starts and pokes the workflows of launches. It runs without providers
// too: another replica may have them.
func (a *assembly) addMachines() {
	m := dispatch.NewMachines(a.dispatcher.Calls, a.temporal, a.db.Launches, a.db.Hub(), a.log)
	a.middle = append(a.middle, m.Run)
}
