package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// outputFlag is how an answer is printed.
type outputFlag string

const (
	outputTable outputFlag = ""
	outputWide  outputFlag = "wide"
	outputJSON  outputFlag = "json"
	outputYAML  outputFlag = "yaml"
)

func (o *outputFlag) add(fs *pflag.FlagSet) {
	fs.StringVarP((*string)(o), "output", "o", "", `"json" or "yaml" prints the decision as data, "wide" a longer table`)
}

func (o outputFlag) check() error {
	switch o {
	case outputTable, outputWide, outputJSON, outputYAML:
		return nil
	}
	return fmt.Errorf("--output: %q: want json, yaml, wide or nothing", string(o))
}

// print writes an answer as data, or has its table written.
func (o outputFlag) print(w io.Writer, answer any, table func(w io.Writer, wide bool) error) error {
	switch o {
	case outputJSON:
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	case outputYAML:
		text, err := yaml.Marshal(answer)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	return table(w, o == outputWide)
}
