package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// outputFlag is the flag that selects the output format of a command.
type outputFlag string

const (
	outputTable outputFlag = ""
	outputWide  outputFlag = "wide"
	outputJSON  outputFlag = "json"
	outputYAML  outputFlag = "yaml"
)

func (o *outputFlag) addFlag(fs *pflag.FlagSet) {
	fs.StringVarP((*string)(o), "output", "o", "", `output format: "json", "yaml", or "wide" for a table with more columns`)
}

func (o outputFlag) validate() error {
	switch o {
	case outputTable, outputWide, outputJSON, outputYAML:
		return nil
	}
	return fmt.Errorf("--output: %q: want json, yaml, wide or nothing", string(o))
}

// printAnswer prints an answer in the selected format: as JSON, as YAML, or as a table that the function table writes.
func (o outputFlag) printAnswer(w io.Writer, answer any, table func(w io.Writer, wide bool) error) error {
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
