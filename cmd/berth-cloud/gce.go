package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/gce"
	"berth/internal/control/cloud/offers"
)

// gceConfig is the file of --config. All fields but the project are optional.
type gceConfig struct {
	// Project is the id of the Google project that owns the instances.
	Project string `yaml:"project"`
	// Offers is a CSV file with the offers and their prices.
	Offers string `yaml:"offers"`
	// CredentialsFile names credentials in place of the SDK's default chain.
	CredentialsFile string `yaml:"credentials_file"`
	// Endpoint replaces Google's own, for tests.
	Endpoint string `yaml:"endpoint"`
}

// gceScope is the OAuth scope of access tokens: Compute Engine alone.
const gceScope = "https://www.googleapis.com/auth/compute"

// gceCommand returns the subcommand for Google Compute Engine.
func gceCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "gce --config FILE",
		Short: "Answer one request with Google Compute Engine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := openGCE(path)
			if err != nil {
				return err
			}
			return serve(cmd, p)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML file that names project, credentials and offers (required)")
	_ = cmd.MarkFlagRequired("config") // the error is for unknown flags
	return cmd
}

// openGCE returns the provider of a configuration file. Without credentials_file the credentials are the
// application default ones: GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, the metadata server.
func openGCE(path string) (*gce.Provider, error) {
	var c gceConfig
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(text, &c, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	keys, missing := c.credentials() // without them a call fails with kind auth, and not without an answer
	p, err := gce.New(gce.Options{
		Project: c.Project, Credentials: keys, NoCredentials: missing, Endpoint: c.Endpoint,
		// Read by the call that needs it: a bad price must not keep a machine from being terminated.
		Offers: func() ([]cloud.Offer, error) {
			if c.Offers == "" {
				return nil, errors.New("the file of --config names no file of offers; set the field offers")
			}
			return offers.Load(c.Offers, "gce")
		},
	})
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	return p, nil
}

// credentials returns the source of access tokens. The program lives for one call, so tokens are not
// refreshed in the background.
func (c gceConfig) credentials() (auth.TokenProvider, error) {
	o := &credentials.DetectOptions{Scopes: []string{gceScope}, DisableAsyncRefresh: true}
	if c.CredentialsFile == "" {
		keys, err := credentials.DetectDefault(o)
		if err != nil {
			return nil, fmt.Errorf("find the application default credentials: %w", err)
		}
		return keys, nil
	}
	text, err := os.ReadFile(c.CredentialsFile)
	if err != nil {
		return nil, fmt.Errorf("credentials_file: %w", err)
	}
	var file struct {
		Type credentials.CredType `json:"type"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("credentials_file: %s is no file of Google credentials: %w", c.CredentialsFile, err)
	}
	// The file belongs to the operator, so each type is allowed.
	keys, err := credentials.NewCredentialsFromJSON(file.Type, text, o)
	if err != nil {
		return nil, fmt.Errorf("credentials_file: %s: %w", c.CredentialsFile, err)
	}
	return keys, nil
}
