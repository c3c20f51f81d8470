from fewmore.cli import main

main()
