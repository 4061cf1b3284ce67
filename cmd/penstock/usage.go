package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/internal/near"
)

// usageError is a wrong command line, or a file on it that cannot be read.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// args checks the number of a command's arguments, which are what.
func args(what string, min, max int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		switch {
		case len(a) < min:
			return usage("%s: %s is missing; for example: %s", cmd.Name(), what, example(cmd))
		case len(a) > max && max == 0:
			return usage("%s: it takes no arguments, but there is %q", cmd.Name(), a[0])
		case len(a) > max:
			return usage("%s: it takes one %s, but there is also %q; for example: %s", cmd.Name(), what, a[max], example(cmd))
		}
		return nil
	}
}

// example is the first of a command, without its comment.
func example(cmd *cobra.Command) string {
	line, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n")
	line, _, _ = strings.Cut(line, " #")
	return strings.TrimSpace(line)
}

// noCommand refuses what follows the program's name and is no command.
func noCommand(cmd *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if n := near.Name(a[0], names); n != "" {
		return usage("unknown command %q; did you mean %q?", a[0], n)
	}
	return usage("unknown command %q; have %s", a[0], strings.Join(names, ", "))
}

// flagError says what is wrong with an option.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	var number *strconv.NumError
	if errors.As(err, &number) {
		text, _, _ = strings.Cut(text, ": strconv.")
		switch {
		case errors.Is(number.Err, strconv.ErrRange):
			text += ": it is too large"
		case number.Func == "ParseUint":
			text += ": want a whole number, not negative"
		case number.Func == "ParseBool":
			text += ": want true or false"
		default:
			text += ": want a whole number"
		}
	}
	if cmd.HasParent() {
		text = cmd.Name() + ": " + text
	}
	return usage("%s; see: %s --help", text, cmd.CommandPath())
}

// helpCommand is cobra's, but what it does not know is a wrong command line.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print what a command does, its options and examples",
		Example: `  penstock help
  penstock help run`,
		Args: args("command", 0, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			c, rest, err := cmd.Root().Find(a)
			if err != nil || len(rest) > 0 {
				return noCommand(cmd.Root(), a)
			}
			c.InitDefaultHelpFlag()
			c.InitDefaultVersionFlag()
			return c.Help()
		},
	}
}

// completionCommand is cobra's, with its mistakes told as all others.
func completionCommand() *cobra.Command {
	shells := []string{"bash", "fish", "powershell", "zsh"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a script that completes command lines in bash, fish, powershell or zsh",
		Example: `  penstock completion bash > penstock.bash   # to be sourced
  penstock completion zsh > _penstock        # into a folder of $fpath`,
		Hidden:    true,
		ValidArgs: shells,
		Args:      args("SHELL", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, c := cmd.OutOrStdout(), cmd.Root()
			switch a[0] {
			case "bash":
				return c.GenBashCompletionV2(w, true)
			case "fish":
				return c.GenFishCompletion(w, true)
			case "powershell":
				return c.GenPowerShellCompletionWithDesc(w)
			case "zsh":
				return c.GenZshCompletion(w)
			}
			return usage("completion: no shell %q; have %s", a[0], strings.Join(shells, ", "))
		},
	}
}
